"""The driver's line to the service: facts out, in order; the desired state in. Training never waits for it.

    add(fact) -> buffer -> segment (numbered, kept until acknowledged) -> POST /v1/driver/facts
                              |  the service is away for seconds
                              v
                           spool in object storage: read back here later, or by the service if we die
    GET /v1/driver/desired?version=… (answers when it changes) -> on_desired(desired)

A number is given when a fact leaves the buffer, so that thinning leaves no gap, and a segment is repeated
unchanged until it is acknowledged: the service counts each number once, so repeating is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from elastrain.trainers.reporting.desired import POLL_S, poll
from elastrain.trainers.reporting.fact_buffer import Buffer, Encoded, Fact, encode
from elastrain.trainers.reporting.retrying import is_loopback, retry_waits, trusted
from elastrain.trainers.reporting.spool import Segment, Spool, body
from elastrain.trainers.storage import StorageError

log = logging.getLogger(__name__)

LINGER_S = 0.1  # facts come in bursts; one request per burst
SPOOL_AFTER_S = 2.0  # of a service that is away
SPOOL_EVERY_S = 5.0  # while it stays away; so much is lost with a driver that is killed then
SEARCH_EVERY_S = 10.0  # how often a lost service is looked for at another address


class _Superseded(Exception):
    """The service has a later attempt of this job, or none: whoever speaks for this one must end."""


class Reporter:
    """Posts facts and polls the desired state, in the background of the driver's event loop."""

    def __init__(
        self,
        url: str,
        token: str,
        attempt: int,
        *,
        on_desired: Callable[[Mapping[str, Any]], None],
        on_superseded: Callable[[], None],
        spool: Spool | None = None,
        find_service: Callable[[], str | None] = lambda: None,
        transport: httpx.AsyncBaseTransport | None = None,
        certificates: str = "",
    ) -> None:
        """url: the service's address, such as http://127.0.0.1:8000. certificates: see `trusted`. The
        callbacks run in the event loop, but find_service, which blocks: it looks up where the service has
        moved to."""
        self._attempt = attempt
        self._on_desired, self._on_superseded = on_desired, on_superseded
        self._spool, self._find_service = spool, find_service
        self._addresses = [url]
        self._buffer = Buffer()
        self._segments: deque[Segment] = deque()  # numbered, in order; the first is the one that is posted
        self._next = 1  # the number of the next fact that leaves the buffer
        self._more = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closing = self._over = False
        self._away_since: float | None = None
        self._spilled_at = self._searched_at = 0.0
        self._told = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(15.0, read=POLL_S + 15.0),
            trust_env=not is_loopback(url),  # a proxy for the internet has no business on this machine
            verify=trusted(certificates),
            transport=transport,
        )

    @property
    def unsent(self) -> int:
        """Facts that the service has not acknowledged."""
        return sum(segment.count for segment in self._segments) + len(self._buffer)

    @property
    def unkept(self) -> int:
        """Those among them that would be lost with this process."""
        return sum(segment.count for segment in self._segments if not segment.stored) + len(self._buffer)

    def add(self, fact: Fact) -> None:
        """Take a fact; returns at once. Call it in the event loop's thread."""
        self._buffer.add(fact)
        self._drained.clear()
        self._more.set()

    def start(self, desired_version: int) -> None:
        """Begin to post and to poll; `desired_version` is what the claim's answer held."""
        self._tasks = [
            asyncio.create_task(self._post_forever(), name="reporter: facts"),
            asyncio.create_task(self._poll(desired_version), name="reporter: desired"),
        ]

    async def close(self, timeout_s: float) -> int:
        """Post what is left, for at most `timeout_s`, then keep it in the spool. Returns how many facts the
        service has not heard of."""
        self._closing = True  # an end has no use for lingering
        self._more.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._spill()
        await self._http.aclose()
        return self.unsent

    # -- facts

    async def _post_forever(self) -> None:
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                if not self._closing:
                    await asyncio.sleep(LINGER_S)
                while self.unsent:
                    if not self._segments:
                        self._number(self._buffer.take())
                    await self._post_first()
                self._drained.set()
        except _Superseded:
            self._superseded()

    def _number(self, facts: list[Encoded]) -> Segment:
        self._segments.append(Segment(self._next, len(facts), facts))
        self._next += len(facts)
        return self._segments[-1]

    async def _post_first(self) -> None:
        """Post the oldest segment until it is acknowledged. Raises _Superseded."""
        segment = self._segments[0]
        for wait_s in retry_waits():
            status = await self._post(segment)
            if status == 200:
                await self._acknowledged(segment)
                return
            if status in (400, 413, 422):
                self._split(segment, status)
                return
            await self._wait(wait_s)

    async def _acknowledged(self, segment: Segment) -> None:
        self._segments.popleft()
        if self._away_since is not None:
            log.info("the service takes facts again")
        self._away_since, self._told = None, ""
        if segment.stored and self._spool is not None:
            with contextlib.suppress(StorageError):  # the service will find nothing new in it
                await asyncio.to_thread(self._spool.delete, segment)

    async def _post(self, segment: Segment) -> int:
        """One request; -> its status, 0 without an answer. Raises _Superseded."""
        try:
            if segment.facts is None and self._spool is not None:
                await asyncio.to_thread(self._spool.load, segment)
            content = body({"attempt": self._attempt, "first_seq": segment.first}, segment.facts or [])
            reply = await self._http.post(
                "/v1/driver/facts", content=content, headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            self._trouble(f"the service does not take facts: {error!r}; they are kept")
            return 0
        except StorageError as error:
            self._trouble(f"kept facts cannot be read: {error}")
            return 0
        if reply.status_code == 410:
            if not _took(reply):  # history is taken from a superseded attempt as well
                raise _Superseded
            self._superseded(and_forget=False)
            return 200
        if reply.status_code != 200:
            self._trouble(f"the service answered {reply.status_code} to facts: {reply.text[:300]}")
        return reply.status_code

    def _split(self, segment: Segment, status: int) -> None:
        """A refused segment holds a fact that the service does not understand: find it, and let an event take
        its place, for the numbers after it are given."""
        facts = segment.facts or []
        self._segments.popleft()
        if len(facts) > 1:
            half = len(facts) // 2
            later = Segment(segment.first + half, len(facts) - half, facts[half:])
            self._segments.extendleft([later, Segment(segment.first, half, facts[:half], segment.stored)])
            return
        log.error("the service refused a fact (%d), it is lost: %.2000s", status, facts and facts[0].body)
        if facts and facts[0].kind != "refused":
            text = f"The service refused a fact ({status})"
            said = encode({"kind": "event", "type": "fact.refused", "message": text, "data": {}})
            self._segments.appendleft(Segment(segment.first, 1, [Encoded("refused", said, None)]))

    # -- while the service is away

    def _trouble(self, text: str) -> None:
        """Say it once, and again when it changes."""
        if self._away_since is None:
            self._away_since = time.monotonic()
        if text != self._told:
            log.warning("%s", text)
        self._told = text

    async def _wait(self, wait_s: float) -> None:
        """Until the next try. Meanwhile what is kept here goes to the spool; the service is looked for, once:
        each address is tried before it is given up for the next."""
        until, searched = time.monotonic() + wait_s, False
        while True:
            now = time.monotonic()
            away_s = now - (self._away_since or now)
            if away_s >= SPOOL_AFTER_S and now - self._spilled_at >= SPOOL_EVERY_S:
                self._spilled_at = now
                await self._spill()
            due = away_s >= SEARCH_EVERY_S and now - self._searched_at >= SEARCH_EVERY_S
            if due and not searched:
                self._searched_at, searched = now, True
                await self._search()
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, 0.5))

    async def _spill(self) -> None:
        """What is not acknowledged is in storage afterwards, or stays here if storage is away too."""
        if self._spool is None:
            return
        try:
            for segment in list(self._segments):
                if not segment.stored:
                    await asyncio.to_thread(self._spool.put, segment)
            while len(self._buffer):
                if self._spool.full:
                    self._buffer.drop_metrics()
                segment = self._number(self._buffer.take())
                await asyncio.to_thread(self._spool.put, segment)
        except StorageError as error:
            log.warning("%d facts are kept in memory only: %s", self.unkept, error)
        for segment in list(self._segments)[1:]:
            if segment.stored:
                segment.facts = None

    async def _search(self) -> None:
        """Try another address of the service, if one is known."""
        try:
            found = await asyncio.to_thread(self._find_service)
        except StorageError as error:
            log.warning("where the service is now cannot be looked up: %s", error)
            return
        if found is not None and found not in self._addresses:
            self._addresses.append(found)
        if len(self._addresses) > 1:
            self._addresses.append(self._addresses.pop(0))
            log.warning("the service is looked for at %s", self._addresses[0])
            self._http.base_url = httpx.URL(self._addresses[0])

    # -- the desired state, and the end

    async def _poll(self, version: int) -> None:
        await poll(self._http, version, self._on_desired)
        self._superseded()

    def _superseded(self, and_forget: bool = True) -> None:
        if and_forget:
            self._buffer, self._segments = Buffer(), deque()
            self._drained.set()
        if not self._over:
            self._over = True
            log.warning("the service no longer speaks with attempt %d: another took over", self._attempt)
            self._on_superseded()


def _took(reply: httpx.Response) -> bool:
    """Whether the service took the facts, though their attempt is over."""
    try:
        return "acked_seq" in reply.json()
    except (json.JSONDecodeError, TypeError):
        return False

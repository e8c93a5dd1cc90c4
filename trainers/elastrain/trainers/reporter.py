"""The driver's line to the service: facts out, in order; the desired state in. Training never waits for it.

    add(fact) -> buffer -> batch (numbered, kept until acknowledged) -> POST /v1/driver/facts
    GET /v1/driver/desired?version=… (answers when it changes) -> on_desired(desired)

A number is given when a fact enters a batch, so that thinning the buffer leaves no gap, and a batch is
repeated unchanged until it is acknowledged: the service counts each number once, so repeating is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

log = logging.getLogger(__name__)

Fact = Mapping[str, Any]

BUFFER_BYTES = 32 * 1024**2  # above it metrics are thinned
BATCH_BYTES = 512 * 1024
BATCH_FACTS = 1000
LINGER_S = 0.1  # facts come in bursts; one request per burst
FIRST_RETRY_S, LAST_RETRY_S = 0.2, 10.0
POLL_S = 30


class Superseded(Exception):
    """The service has a later attempt of this job, or none: whoever speaks for this one must end."""


@dataclass(frozen=True)
class _Encoded:
    kind: str
    body: bytes  # JSON
    number: int | None  # of a metric that may be thinned: one of training, there is one per step


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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """url: the service's address, such as http://127.0.0.1:8000. The callbacks run in the event loop."""
        self._attempt = attempt
        self._on_desired = on_desired
        self._on_superseded = on_superseded
        self._buffer = Buffer()
        self._batch: list[_Encoded] = []  # its facts are numbered from self._acked + 1
        self._acked = 0
        self._more = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(15.0, read=POLL_S + 15.0),
            trust_env=not is_loopback(url),  # a proxy for the internet has no business on this machine
            transport=transport,
        )

    @property
    def unsent(self) -> int:
        """Facts that the service has not acknowledged."""
        return len(self._batch) + len(self._buffer)

    def add(self, fact: Fact) -> None:
        """Take a fact; returns at once. Call it in the event loop's thread."""
        self._buffer.add(fact)
        self._drained.clear()
        self._more.set()

    def start(self, desired_version: int) -> None:
        """Begin to post and to poll; `desired_version` is what the claim's answer held."""
        self._tasks = [
            asyncio.create_task(self._post_forever(), name="reporter: facts"),
            asyncio.create_task(self._poll_forever(desired_version), name="reporter: desired"),
        ]

    async def close(self, timeout_s: float) -> int:
        """Post what is left, for at most `timeout_s`, then stop. Returns how many facts stay unsent."""
        self._closing = True  # an end has no use for lingering
        self._more.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
                    self._batch = self._batch or self._buffer.take()
                    await self._post_batch()
                self._drained.set()
        except Superseded:
            self._superseded()

    async def _post_batch(self) -> None:
        """Post the batch until it is acknowledged. Raises Superseded."""
        for wait_s in retry_waits():
            status = await self._post()
            if status == 200:
                self._acked += len(self._batch)
                self._batch = []
                return
            if status in (400, 413, 422):
                self._shrink(status)
                return
            await asyncio.sleep(wait_s)

    async def _post(self) -> int:
        """One request; -> its status, 0 without an answer. Raises Superseded."""
        head = json.dumps({"attempt": self._attempt, "first_seq": self._acked + 1})
        body = head[:-1].encode() + b', "facts": [' + b",".join(fact.body for fact in self._batch) + b"]}"
        try:
            reply = await self._http.post(
                "/v1/driver/facts", content=body, headers={"Content-Type": "application/json"}
            )
        except httpx.HTTPError as error:
            log.warning("the service did not take %d facts: %r; they are kept", len(self._batch), error)
            return 0
        if reply.status_code == 410:
            raise Superseded
        if reply.status_code != 200:
            log.warning("the service answered %d to facts: %.300s", reply.status_code, reply.text)
        return reply.status_code

    def _shrink(self, status: int) -> None:
        """A refused batch holds a fact that the service does not understand: find it, and let it alone go."""
        if len(self._batch) == 1:
            log.error("the service refused a fact (%d), it is lost: %.2000s", status, self._batch[0].body)
            self._batch = []
            return
        half = len(self._batch) // 2
        self._buffer.give_back(self._batch[half:])
        self._batch = self._batch[:half]

    # -- the desired state

    async def _poll_forever(self, version: int) -> None:
        waits = retry_waits()
        while True:
            try:
                reply = await self._http.get(
                    "/v1/driver/desired", params={"version": version, "wait_s": POLL_S}
                )
                if reply.status_code == 410:
                    self._superseded()
                    return
                desired = reply.raise_for_status().json()
                changed = int(desired["version"]) != version
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                log.warning("the desired state could not be read: %r", error)
                await asyncio.sleep(next(waits))
                continue
            waits = retry_waits()
            if changed:
                version = int(desired["version"])
                self._on_desired(desired)

    def _superseded(self) -> None:
        log.warning("the service no longer speaks with attempt %d: another took over", self._attempt)
        self._buffer, self._batch = Buffer(), []
        self._drained.set()
        self._on_superseded()


class Buffer:
    """Facts in order, in bounded memory: the metrics of training are thinned evenly, all else stays."""

    def __init__(self, limit_bytes: int = BUFFER_BYTES) -> None:
        self._limit = limit_bytes
        self._facts: deque[_Encoded] = deque()
        self._bytes = 0
        self._metrics = 0  # numbers given
        self._stride = 1  # a thinned buffer holds every so manyth metric

    def __len__(self) -> int:
        return len(self._facts)

    def add(self, fact: Fact) -> None:
        """Keep a copy of the fact, as JSON. Raises TypeError for what JSON cannot hold."""
        number = None
        if fact["kind"] == "metric" and not any(name.startswith("val_") for name in fact["values"]):
            number = self._metrics = self._metrics + 1
        encoded = _Encoded(str(fact["kind"]), encode(fact), number)
        self._facts.append(encoded)
        self._bytes += len(encoded.body)
        if self._bytes > self._limit:
            self._thin()

    def take(self) -> list[_Encoded]:
        """Remove and return the oldest facts that fit into one request; at least one."""
        batch: list[_Encoded] = []
        size = 0
        while self._facts and len(batch) < BATCH_FACTS and (not batch or size < BATCH_BYTES):
            batch.append(self._facts.popleft())
            size += len(batch[-1].body)
        self._bytes -= size
        if not self._facts:
            self._stride = 1
        return batch

    def give_back(self, facts: list[_Encoded]) -> None:
        """Put facts that were taken back to the front."""
        self._facts.extendleft(reversed(facts))
        self._bytes += sum(len(fact.body) for fact in facts)

    def _thin(self) -> None:
        """Halve what is kept: fewer metrics, evenly, and of progress the newest. Events are never dropped."""
        newest = next((fact for fact in reversed(self._facts) if fact.kind == "progress"), None)
        self._keep(lambda fact: fact.kind != "progress" or fact is newest)
        self._keep(self._on_stride)  # those that came since the last time
        while self._bytes > self._limit // 2 and self._stride <= self._metrics:
            self._stride *= 2
            self._keep(self._on_stride)
        log.warning("the service is away: of the kept metrics only one in %d stays", self._stride)
        # what cannot be thinned may grow: try again only once as much as this has come
        self._limit = max(self._limit, 2 * self._bytes)

    def _on_stride(self, fact: _Encoded) -> bool:
        return fact.number is None or fact.number % self._stride == 0 or fact.number == self._metrics

    def _keep(self, wanted: Callable[[_Encoded], bool]) -> None:
        self._facts = deque(filter(wanted, self._facts))
        self._bytes = sum(len(fact.body) for fact in self._facts)


def encode(value: Any) -> bytes:
    """JSON with NaN and infinities as strings, as the API has them. Raises TypeError."""
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def retry_waits() -> Iterator[float]:
    """Seconds to wait before each next try: doubling from 0.2 to 10, spread so that drivers do not march."""
    wait_s = FIRST_RETRY_S
    while True:
        yield wait_s * random.uniform(0.7, 1.3)
        wait_s = min(2 * wait_s, LAST_RETRY_S)


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")

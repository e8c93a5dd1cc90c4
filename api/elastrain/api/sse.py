"""Following a job as Server-Sent Events.

The id of a message is its position in the job's feed, so whoever lost the connection goes on with
`Last-Event-ID` and misses nothing. A comment every `HEARTBEAT_S` tells a silent job from a dead line. The
last message is `end`, with the job's final status.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from elastrain.api.replies import dumps
from elastrain.service.control import Actor, Control
from elastrain.service.errors import NotFound, Unavailable

Kind = Literal["event", "metric", "log"]
KINDS: tuple[Kind, ...] = ("event", "metric", "log")
HEARTBEAT_S = 15.0
LOOK_S = 0.05  # how often the process's own change counter is read: it costs nothing
POLL_S = 1.0  # how often the store is read anyway: another process may have written to it


def wanted(request: Request) -> bool:
    """Whether the client asks for a stream."""
    return "text/event-stream" in request.headers.get("accept", "")


def message(kind: str, position: int, data: Any) -> bytes:
    """One message on the wire. JSON has no raw newlines, so the data is one line."""
    return f"event: {kind}\nid: {position}\ndata: {dumps(data)}\n\n".encode("utf-8", "replace")


@dataclass(frozen=True)
class Follow:
    """Who follows what of which job. `worker` and `attempt` narrow logs down."""

    service: Control
    actor: Actor
    job: str
    kinds: tuple[Kind, ...]
    worker: str | None = None
    attempt: int | None = None

    def response(self, last_event_id: int | None, after: int) -> StreamingResponse:
        """The stream, from the last position that the client has. Raises NotFound before its first byte."""
        job = self.service.job(self.job, actor=self.actor)["id"]
        start = after if last_event_id is None else last_event_id
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self.messages(job, start), media_type="text/event-stream", headers=headers)

    async def messages(self, job: str, after: int) -> AsyncIterator[bytes]:
        """Everything of `job` (a full id) after position `after`, as it comes, then `end`."""
        yield b": following\n\n"  # the headers leave now, before the job has anything to say
        spoken = time.monotonic()
        while True:
            seen = self.service.changes.count(job)
            read = partial(self.service.feed, job, actor=self.actor, after=after, kinds=self.kinds)
            try:
                page = await run_in_threadpool(read)
            except (Unavailable, NotFound):
                return  # it breaks off without its end: the client asks again, and is told
            for row in page["rows"]:
                if self.fits(row["data"]):
                    spoken = time.monotonic()
                    yield message(row["kind"], row["position"], row["data"])
            moved, after = page["position"] != after, page["position"]
            if page["end"] is not None:
                yield message("end", after, {"id": job, **page["end"]})
                return
            if time.monotonic() - spoken >= HEARTBEAT_S:
                spoken = time.monotonic()
                yield b": heartbeat\n\n"
            if not moved:
                await self.news(job, seen)

    def fits(self, data: dict[str, Any]) -> bool:
        """Whether a row is of the worker and attempt asked for."""
        return (self.worker is None or data.get("worker") == self.worker) and (
            self.attempt is None or data.get("attempt") == self.attempt
        )

    async def news(self, job: str, seen: int) -> None:
        """Returns once the job may have changed since its counter was `seen`."""
        until = time.monotonic() + POLL_S
        while self.service.changes.count(job) == seen and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)

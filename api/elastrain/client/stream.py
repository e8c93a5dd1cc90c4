"""Following a job over Server-Sent Events, across lost connections, without a gap or a repeat."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from elastrain.client.errors import Unreachable
from elastrain.client.http import Http

# the server speaks every 15 s at least, if only a heartbeat: a line silent for longer than this is dead
SILENCE_S = 40.0
PAUSES_S = (0.1, 0.5, 1.0, 2.0)  # before each reconnect; the last one repeats

Kind = Literal["event", "metric", "log", "end"]


@dataclass(frozen=True)
class Update:
    """One thing that happened: `kind` says which shape `data` has; `id` is its place in the job's feed."""

    kind: str
    id: int
    data: dict[str, Any]


def follow(http: Http, path: str, params: dict[str, Any], after: int, patience_s: float) -> Iterator[Update]:
    """Updates after position `after`, up to and including `end`.

    Reconnects where it was. Raises Unreachable (connection lost) once the service is away for `patience_s`.
    """
    last, seen_at, tries = after, time.monotonic(), 0
    while True:
        try:
            for update in _connection(http, path, params, last):
                last, seen_at, tries = max(last, update.id), time.monotonic(), 0
                yield update
                if update.kind == "end":
                    return
        except Unreachable as error:
            if time.monotonic() - seen_at > patience_s:
                raise Unreachable(
                    f"Connection lost, and no luck for {patience_s:.0f} s: {error.detail}"
                ) from error
        # a stream that just stopped without `end` was cut: a proxy's limit, a restart of the service
        time.sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
        tries += 1


def _connection(http: Http, path: str, params: dict[str, Any], after: int) -> Iterator[Update]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    timeout = httpx.Timeout(SILENCE_S, connect=5.0)
    with http.stream(path, params=params, headers=headers, timeout=timeout) as response:
        yield from parse(response.iter_lines())


def parse(lines: Iterable[str]) -> Iterator[Update]:
    """Server-Sent Events as updates. A message that was cut off before its empty line never happened."""
    kind, position, data = "", 0, ""
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if kind and data:
                yield Update(kind, position, json.loads(data))
            kind, data = "", ""
        elif field == "event":
            kind = value
        elif field == "id":
            position = int(value)
        elif field == "data":
            data += value

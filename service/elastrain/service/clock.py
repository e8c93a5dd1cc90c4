"""Time as the service sees it: seconds since the epoch inside, RFC 3339 UTC outside.

The clock is handed in everywhere, so that a test can let an hour pass in no time.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()


@lru_cache(maxsize=4096)  # a job shows the same moment several times, and pages show the same jobs
def rfc3339(at_s: float | None) -> str | None:
    """Seconds since the epoch as 2026-01-31T12:00:00.123Z; None stays None."""
    if at_s is None:
        return None
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def seconds(text: object, default_s: float) -> float:
    """An RFC 3339 time as seconds since the epoch; `default_s` for anything that is not one."""
    if not isinstance(text, str):
        return default_s
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return default_s
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

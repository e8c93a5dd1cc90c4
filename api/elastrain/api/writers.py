"""Who may write into the store at once. Those beyond wait in the event loop, in the order in which they came,
where they hold no thread and want no interpreter.

SQLite has one writer at a time, so one thread writes. Drivers post hundreds of times a second and can wait:
one of them at a time stands in line with the submits, so a submit goes before all others.
"""

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

# on PostgreSQL, where a writer waits for the network most of the time
SUBMITS_AT_ONCE, FACTS_AT_ONCE = 8, 2


class Writers:
    def __init__(self, one_at_a_time: bool) -> None:
        """one_at_a_time: as SQLite takes them."""
        self._line = CapacityLimiter(1 if one_at_a_time else SUBMITS_AT_ONCE + FACTS_AT_ONCE)
        self._drivers = CapacityLimiter(1 if one_at_a_time else FACTS_AT_ONCE)

    async def submit(self, write: Callable[[], T]) -> T:
        """What `write` returns, from a thread."""
        return await to_thread.run_sync(write, limiter=self._line)

    async def facts(self, write: Callable[[], T]) -> T:
        """As `submit`, of a driver."""
        async with self._drivers:
            return await to_thread.run_sync(write, limiter=self._line)

"""Who may write into the store at once. Those beyond wait in the event loop, in the order in which they came,
where they hold no thread and want no interpreter.

SQLite has one writer at a time, so one thread writes. Drivers post hundreds of times a second and can wait:
one of them at a time stands in line with the submits, so a submit goes before all others.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from anyio import CapacityLimiter, WouldBlock, fail_after, to_thread

from elastrain.service.errors import Unavailable

T = TypeVar("T")

# on PostgreSQL, where a writer waits for the network most of the time
SUBMITS_AT_ONCE, FACTS_AT_ONCE = 8, 2
# whoever is first may wait for a locked database: those behind do not wait for each of the others in turn
PATIENCE_S = 30.0


class Writers:
    def __init__(self, one_at_a_time: bool) -> None:
        """one_at_a_time: as SQLite takes them."""
        many = 1 if one_at_a_time else SUBMITS_AT_ONCE + FACTS_AT_ONCE
        self._line, self._threads = CapacityLimiter(many), CapacityLimiter(many)
        self._drivers = CapacityLimiter(1 if one_at_a_time else FACTS_AT_ONCE)

    async def submit(self, write: Callable[[], T]) -> T:
        """What `write` returns, from a thread. Raises Unavailable if it had to wait for too long."""
        async with _place(self._line):
            return await to_thread.run_sync(write, limiter=self._threads)

    async def facts(self, write: Callable[[], T]) -> T:
        """As `submit`, of a driver."""
        async with _place(self._drivers, self._line):
            return await to_thread.run_sync(write, limiter=self._threads)


@asynccontextmanager
async def _place(*lines: CapacityLimiter) -> AsyncIterator[None]:
    """Wait for a place in each of these."""
    held: list[CapacityLimiter] = []
    try:
        try:
            for line in lines:
                try:
                    line.acquire_nowait()  # never past somebody who waits
                except WouldBlock:
                    with fail_after(PATIENCE_S):
                        await line.acquire()
                held.append(line)
        except TimeoutError:
            detail = "Those who came before still write, or wait for the database"
            raise Unavailable(detail, hint="Nothing is lost; try again.") from None
        yield
    finally:
        for line in held:
            line.release()

"""The clock of a machine is set now and then, by hand or by its time server, by seconds or by hours.

Nothing may end early or wait for hours because of that. What the service counts from a moment (how long a job
has run or waits, since when it was asked to stop, when the next attempt or search is due) goes on as before:
the moments of everything that is under way are moved along. What is over keeps its times.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from elastrain.service.clock import Clock
from elastrain.service.store import Store, installation, moments

log = logging.getLogger(__name__)

# a clock that is kept right by its time server is moved by less at once
LEAST_S = 5.0
# between two readings that belong together
TOGETHER_S = 0.1


def steady_s() -> float:
    """Seconds that nobody can set; the time in which the machine sleeps counts."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Jumps:
    """How far the clock was set since it was asked last. wall: the clock; steady: one that cannot be set."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = steady_s) -> None:
        self._wall, self._steady = wall, steady
        self._offset = self._read()

    def __call__(self) -> float:
        """Seconds, 0 unless they are many; below 0 if it was set back."""
        before, self._offset = self._offset, self._read()
        moved_s = self._offset - before
        return moved_s if abs(moved_s) >= LEAST_S else 0.0

    def _read(self) -> float:
        """By how much the clock is ahead of the other one."""
        while True:
            before = self._steady()
            offset = self._wall() - before
            if self._steady() - before < TOGETHER_S:  # or somebody else had the processor in between
                return offset


class SetClock:
    """For whoever leads: asks in each round, and moves the moments along."""

    def __init__(self, store: Store, clock: Clock, jumps: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._jumps = jumps
        self._first = True

    def noticed(self) -> bool:
        """Whether the clock was set since the last round, of this process or of the one that led before.
        Raises Unavailable."""
        moved_s = self._jumps()
        if self._first:
            moved_s = moved_s or self._behind_what_is_written()
        if moved_s:
            with self._store.write() as tx:
                moments.move_along(tx, moved_s)
                # in one transaction: the next process must not find itself behind, and move them once more
                installation.write(tx, "reconciler", True, self._clock.now())
            log.warning("the clock was set by %+.0f s: what is under way goes on as before", moved_s)
        self._first = False
        return bool(moved_s)

    def _behind_what_is_written(self) -> float:
        with self._store.read() as tx:
            beat = installation.read(tx, "reconciler")
        ahead_s = beat[0] - self._clock.now() if beat is not None else 0.0
        return -ahead_s if ahead_s >= LEAST_S else 0.0

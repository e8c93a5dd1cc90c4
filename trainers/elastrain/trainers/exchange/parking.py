"""What becomes of the process groups of generations that are over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Parked(Protocol):
    def ended(self) -> bool:
        """Is nothing pending any more? The memory of what has ended is free then."""


class Parking:
    """Groups of generations that are over.

    Destroying one waits for what is pending in it, with the interpreter's lock held; keeping all of them
    costs each two threads and some files, which add up over the weeks of a job. So one is destroyed once
    nothing is pending in it, and only when younger generations have been formed: nobody is in it any more.
    """

    KEPT = 2  # the youngest
    AGE_S = 5.0  # an operation has left its thread some time after it says that it has ended

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.groups: list[tuple[float, Parked]] = []

    def take(self, group: Parked) -> None:
        self.groups.append((self._clock(), group))

    def clear(self) -> None:
        """A generation has formed: destroy what is over for certain, in a thread of its own."""
        now, old = self._clock(), self.groups[: -self.KEPT]
        over = [entry for entry in old if entry[1].ended() and now - entry[0] >= self.AGE_S]
        self.groups = [entry for entry in self.groups if entry not in over]
        if over:
            threading.Thread(target=over.clear, daemon=True, name="destroy groups").start()


parking = Parking()

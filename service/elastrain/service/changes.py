"""Who waits for news of a job is woken by the thread that brings it; so is the reconciler.

Only a shortcut within one process: whoever waits also looks into the store now and then, so that a second
service process, or a missed wake-up, costs a moment and never an answer.
"""

from __future__ import annotations

import threading
from collections import defaultdict

# what the reconciler waits for; facts of training, many a second, are none of its business
RECONCILER = "reconciler"


class Changes:
    """A counter per job, and one for the whole (job ""), that only grow."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._counts: defaultdict[str, int] = defaultdict(int)

    def count(self, job: str = "") -> int:
        """Cheap enough to be asked from an event loop."""
        with self._condition:
            return self._counts[job]

    def tell(self, job: str, *, decide: bool = False) -> None:
        """Something about this job was committed. decide: it is something for the reconciler to act on."""
        with self._condition:
            self._counts[job] += 1
            self._counts[""] += 1
            self._counts[RECONCILER] += decide
            self._condition.notify_all()

    def wait(self, job: str, seen: int, timeout_s: float) -> int:
        """Block until the job's counter differs from `seen` or the time is up; returns the counter."""
        with self._condition:
            self._condition.wait_for(lambda: self._counts[job] != seen, timeout_s)
            return self._counts[job]

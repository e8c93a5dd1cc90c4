"""Who waits for news of a job is woken by the thread that brings it; so is the reconciler.

Only a shortcut within one process: whoever waits also looks into the store now and then, so that a second
service process, or a missed wake-up, costs a moment and never an answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# what the reconciler waits for; facts of training, many a second, are none of its business
RECONCILER = "reconciler"


# news that are kept apart; who waits for an older one looks once in vain
KEPT = 10_000


def orders(job: str) -> str:
    """The name of what a job's driver waits for: all news of the job but what the driver itself reported."""
    return f"orders for {job}"


class Changes:
    """When each job was last told of, as a number, and anything at all (job ""). Numbers only grow."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._number = self._forgotten = 0
        self._last: dict[str, int] = {}
        self._listeners: dict[str, list[Callable[[], None]]] = {}
        self._waited_for: Counter[str] = Counter()  # a thread that is woken in vain costs a turn, too

    def count(self, job: str = "") -> int:
        """Another number than before if there was news since. Cheap enough to be asked from an event loop."""
        with self._condition:
            return self._last.get(job, self._forgotten)

    def tell(self, job: str, *, decide: bool = False, reported: bool = False) -> None:
        """Something about this job was committed. decide: it is something for the reconciler to act on.
        reported: by its own driver, to whom it is no news."""
        names = ["", job]
        names += [orders(job)] if not reported else []
        names += [RECONCILER] if decide else []
        with self._condition:
            self._number += 1
            waited_for = not self._waited_for.keys().isdisjoint(names)
            if len(self._last) > KEPT:
                waited_for = True
                self._last.clear()
                self._forgotten = self._number
            self._last.update(dict.fromkeys(names, self._number))
            if waited_for:
                self._condition.notify_all()
            listeners = [wake for name in names for wake in self._listeners.get(name, ())]
        for wake in listeners:
            wake()

    def wait(self, job: str, seen: int, timeout_s: float) -> int:
        """Block until the job's number differs from `seen` or the time is up; returns the number."""
        with self._condition:
            self._waited_for[job] += 1
            self._condition.wait_for(lambda: self._last.get(job, self._forgotten) != seen, timeout_s)
            self._waited_for -= Counter((job,))  # and none is left of those that nobody waits for
            return self._last.get(job, self._forgotten)

    @contextmanager
    def listening(self, name: str, wake: Callable[[], None]) -> Iterator[None]:
        """`wake` is called in the thread that brings the news; it must not block."""
        with self._condition:
            self._listeners.setdefault(name, []).append(wake)
        try:
            yield
        finally:
            with self._condition:
                self._listeners[name].remove(wake)
                if not self._listeners[name]:
                    del self._listeners[name]

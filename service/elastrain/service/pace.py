"""Not too often: about one thing, act once in a while and log once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from elastrain.service.clock import Clock

log = logging.getLogger("elastrain.service")
REMEMBERED = 10_000


class Pace:
    """Remembers when each thing was last due. In memory only: forgetting costs one act too many."""

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._last: dict[str, float] = {}

    def due(self, what: str) -> bool:
        """True at most once in `every_s` seconds."""
        now = self._clock.now()
        if 0 <= now - self._last.get(what, float("-inf")) < self._every_s:  # below 0: the clock was set back
            return False
        if len(self._last) >= REMEMBERED:
            self._last.clear()
        self._last[what] = now
        return True


class Breath:
    """Called often by a long computation, it sleeps now and then: other threads of this interpreter go first.

    Whoever answers a request needs the interpreter twenty times for a moment, and beside one that computes he
    waits for it each time. A short one, for a few jobs, never sleeps.
    """

    SHORT_S, COMPUTES_S, SLEEPS_S = 0.010, 0.002, 0.004

    def __init__(self) -> None:
        self._since = time.perf_counter() + self.SHORT_S

    def __call__(self) -> None:
        if time.perf_counter() - self._since >= self.COMPUTES_S:
            time.sleep(self.SLEEPS_S)
            self._since = time.perf_counter()


def cause(error: BaseException) -> str:
    """What is behind an error, on one line: the first line of the innermost one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().split("\n", 1)[0]


class Troubles:
    """A trouble is logged when it begins, when it changes, and when it is over; not every second."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def begin(self, about: str, text: str, sort: str | None = None) -> bool:
        """Log it, unless it is the one that is known; True if it is new.

        sort: what makes it the same as before, where its text does not.
        """
        if self._open.get(about) == (sort or text):
            return False
        self._open[about] = sort or text
        log.warning("%s: %s", about, text)
        return True

    def over(self, about: str) -> None:
        if self._open.pop(about, None) is not None:
            log.info("%s: well again", about)


def repeat(
    act: Callable[[], object], every_s: float, stop: threading.Event, about: str, troubles: Troubles
) -> None:
    """`act` every so often until told to stop. What it raises ends no thread: a database that is away for a
    minute comes back."""
    while not stop.wait(every_s):
        try:
            act()
            troubles.over(about)
        except Exception as error:
            troubles.begin(about, f"a round failed: {error}")

"""Keeps the Ray head running, and says what happens to it.

starting --ready--> up          starting --ended, or too slow--> waiting
up --ended--> waiting           waiting --backoff over--> starting
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

BACKOFF_S = (1.0, 2.0, 5.0, 15.0, 60.0)  # before the 1st, 2nd ... start in a row that fails
START_TIMEOUT_S = 60.0

State = Literal["starting", "up", "waiting"]


class Head(Protocol):
    """What the supervisor needs of a head; `RayHead` has it."""

    @property
    def alive(self) -> bool: ...
    @property
    def address(self) -> str: ...
    def ready(self) -> bool: ...
    def start(self) -> bool: ...
    def why(self) -> str: ...
    def stop(self) -> object: ...


class Supervisor:
    """One `round` looks once and acts at most once; it never waits for Ray to come up."""

    def __init__(self, head: Head, say: Callable[[str], None]) -> None:
        self._head = head
        self._say = say
        self._failures = 0  # starts in a row that came to nothing
        self._next_s = 0.0  # when to start again, while waiting
        self._begun_s = 0.0
        self.state: State = "waiting"

    def round(self, now_s: float) -> State:
        """now_s: of a clock that only goes forward."""
        if self.state == "waiting" and now_s >= self._next_s:
            self._start(now_s)
        elif self.state == "starting" and self._head.ready():
            self._say(f"Ray is ready ({self._head.address})")
            self.state, self._failures = "up", 0
        elif self.state == "starting" and not self._head.alive:
            self._wait(now_s, f"Ray ended while it started: {self._head.why()}")
        elif self.state == "starting" and now_s - self._begun_s > START_TIMEOUT_S:
            self._head.stop()
            self._wait(now_s, f"Ray was not ready after {START_TIMEOUT_S:.0f} s: {self._head.why()}")
        elif self.state == "up" and not self._head.alive:
            self._wait(now_s, f"Ray ended: {self._head.why()}")
        return self.state

    def _start(self, now_s: float) -> None:
        try:
            found = self._head.start()
        except Exception as error:  # whatever it is, the service goes on and tells why jobs wait
            self._wait(now_s, f"Ray did not start: {error}")
            return
        self._say(f"found Ray running ({self._head.address})" if found else "starting Ray ...")
        self.state, self._begun_s = "starting", now_s

    def _wait(self, now_s: float, why: str) -> None:
        wait_s = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
        self._failures += 1
        self._next_s = now_s + wait_s
        self.state = "waiting"
        self._say(f"{why}\nStarting it again in {wait_s:g} s; jobs wait until then.")

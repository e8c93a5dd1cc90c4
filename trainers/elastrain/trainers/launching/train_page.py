"""A thread of the driver that keeps its attempt on Ray's list of Train runs up to date. Knows no Ray.

    take(fact) -> Shown -> every two seconds, if it changed: tell(run, attempt)

Whoever is told may be slow, away or another than we know: that costs a line in the driver's log, and never
a job. What is told, and how, is in ray_train_page.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from elastrain.trainers.membership.messages import Json

if TYPE_CHECKING:
    from elastrain.trainers.coordination.attempt import Outcome

log = logging.getLogger(__name__)

EVERY_S = 2.0
AGAIN_S = 30.0  # after a try that failed
CLOSE_S = 3.0

Tell = Callable[[Json, Json], None]  # a run and its attempt; raises Away, or anything else: then no more


class Away(Exception):
    """There is no answer: there may be one another time."""


class Shows(Protocol):
    """What is shown of one attempt."""

    name: str

    @property
    def begun(self) -> bool: ...  # whether it trains, or has ended
    def take(self, fact: Json) -> None: ...
    def end(self, outcome: Outcome) -> None: ...
    def run(self) -> Json: ...
    def attempt(self) -> Json: ...


class TrainPage:
    """Takes the facts of one attempt, from any thread. Nothing here raises, and nobody waits but the end,
    for a moment."""

    def __init__(self, shown: Shows, tell: Tell) -> None:
        self._shown, self._tell = shown, tell
        self._lock = threading.Lock()
        self._told: tuple[Json, Json] | None = None
        self._trouble = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._tell_on, name="train page", daemon=True)
        self._thread.start()

    def take(self, fact: Json) -> None:
        """Note a fact of the attempt, if it is shown. Returns at once."""
        try:
            with self._lock:
                self._shown.take(fact)
        except Exception:
            log.exception("a fact of kind %r is not shown on Ray's list of Train runs", fact.get("kind"))

    def close(self, outcome: Outcome) -> None:
        """Tell how it ended, for a moment."""
        with self._lock:
            self._shown.end(outcome)
        self._closing.set()
        self._thread.join(CLOSE_S)

    def _tell_on(self) -> None:
        closing, pause_s = False, EVERY_S
        while not closing:
            closing = self._closing.wait(pause_s)
            pause_s = EVERY_S
            try:
                self._tell_news()
            except Away as why:
                pause_s = AGAIN_S
                self._say(f"Ray's list of Train runs is not up to date ({_headline(why)})")
            except Exception as error:
                what = f"this version of Ray does not take it ({_headline(error)})"
                self._say(f"{self._shown.name} is not on Ray's list of Train runs: {what}")
                return

    def _tell_news(self) -> None:
        """Not before it trains: the first job of a cluster makes two actors for this, and seconds of work."""
        with self._lock:
            news = self._shown.run(), self._shown.attempt()
            begun = self._shown.begun
        if begun and news != self._told:
            self._tell(*news)
            self._told, self._trouble = news, ""

    def _say(self, text: str) -> None:
        """Once, and again when it changes."""
        if text != self._trouble:
            log.warning("%s. The job goes on.", text)
        self._trouble = text


def _headline(error: Exception) -> str:
    """In one line. Of an error in an actor Ray has the cause; else its last line says what it was."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        lines = str(cause).split("\n")[:3]
        return f"{type(cause).__name__}: {' '.join(line.strip() for line in lines)}"[:300]
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1]}"[:300]

"""The moments from which something that is under way is counted, moved along when the clock was set."""

from __future__ import annotations

from sqlalchemy import ColumnElement, case, update

from elastrain.service.jobs import ENDED
from elastrain.service.store.engine import Tx
from elastrain.service.store.schema import attempts, jobs

_JOBS = ("since", "queued_at", "desired_at", "next_attempt_at", "grown_at", "shrunk_at")
_ATTEMPTS = ("submitted_at", "stop_asked_at", "outcome_at", "sweep_at")


def move_along(tx: Tx, moved_s: float) -> None:
    """moved_s: by how much the clock was set, below 0 if back. A moment of 0 means that there was none."""

    def moved(column: ColumnElement[float]) -> ColumnElement[float]:
        return case((column > 0, column + moved_s), else_=column)

    ended = [status.value for status in ENDED]
    tx.execute(update(jobs).where(jobs.c.status.not_in(ended)).values({n: moved(jobs.c[n]) for n in _JOBS}))
    of_attempts = {name: moved(attempts.c[name]) for name in _ATTEMPTS}
    tx.execute(update(attempts).where(attempts.c.state != "ended").values(of_attempts))

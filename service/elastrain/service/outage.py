"""While Ray cannot be reached, nobody knows whether a job still runs: then it says so, and stays what it is.

A driver needs no Ray to report, so a job that is heard of goes on as before. Only one that says nothing any
more, for SILENT_S, gets the reason `ray_unreachable`; its next word, or Ray, takes it back.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.service import points
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.jobs import Reason, Status
from elastrain.service.store import Store, Tx, feed, jobs
from elastrain.service.store.rows import JobRow

SILENT_S = 20.0
UNKNOWN = "Ray cannot be reached"  # begins the message of a job that waits for it


class Outage:
    """Remembers, while Ray is away, how far each job was heard of; forgetting costs SILENT_S once more."""

    def __init__(self, store: Store, clock: Clock, changes: Changes) -> None:
        self._store = store
        self._clock = clock
        self._changes = changes
        self._heard: dict[str, tuple[int, float]] = {}  # job -> (its newest position, since when)

    def round(self, error: str | None, active: Sequence[JobRow]) -> None:
        """error: why Ray cannot be reached; None if it can. active: jobs that have a driver, or get one."""
        now = self._clock.now()
        if error is None:
            self._heard.clear()
            self._write([row for row in active if _says_so(row)], None, now)
            return
        for row in active:
            if self._heard.get(row.id, (-1, now))[0] != row.position:
                self._heard[row.id] = (row.position, now)
        silent = [row for row in active if now - self._heard[row.id][1] >= SILENT_S]
        self._write([row for row in silent if not _says_so(row)], error, now)

    def _write(self, rows: list[JobRow], error: str | None, now: float) -> None:
        for row in rows:
            with self._store.write() as tx:
                current = jobs.lock(tx, row.id)
                if (current.status, current.reason) != (row.status, row.reason):
                    continue
                _begin(tx, current, error, now) if error is not None else _over(tx, current, now)
            points.reach("the outage is noted")
            self._changes.tell(row.id)


def _says_so(row: JobRow) -> bool:
    return (row.message or "").startswith(UNKNOWN)


def _begin(tx: Tx, row: JobRow, error: str, now: float) -> None:
    what = "whether it still trains is not known" if row.status is Status.RUNNING else "it waits for that"
    message = f"{UNKNOWN} ({error}), and its driver has said nothing for {SILENT_S:g} s: {what}"
    asked_to_stop = row.status in (Status.CANCELLING, Status.PAUSING)  # that stays the reason
    jobs.change(
        tx, row.id, message=message, reason=row.reason if asked_to_stop else Reason.RAY_UNREACHABLE.value
    )
    feed.add_event(tx, row.id, "job.reason", message, {"reason": Reason.RAY_UNREACHABLE.value}, now)


def _over(tx: Tx, row: JobRow, now: float) -> None:
    reason = row.reason
    if row.status is Status.RUNNING:
        reason = Reason.TRAINING.value
    elif row.status is Status.STARTING:
        reason = (Reason.RECOVERING if row.attempts_made > 1 else Reason.WORKERS_GRANTED).value
    jobs.change(tx, row.id, message=None, reason=reason)
    feed.add_event(tx, row.id, "job.reason", "Ray answers again", {"reason": reason}, now)

"""`timeout_s`: how long a job may be starting and running, over all attempts since it was last retried."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain.service import points
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.commands import want
from elastrain.service.jobs import Desired, Signal, Status, advance
from elastrain.service.store import Store, jobs
from elastrain.service.store.rows import JobRow


def overdue(row: JobRow, now: float) -> bool:
    limit_s = row.spec.get("timeout_s")
    counts = row.status in (Status.STARTING, Status.RUNNING)
    return counts and limit_s is not None and row.active_until(now) > float(limit_s)


class Timeouts:
    """Ends what is overdue as a cancel does, proof included; the job then is failed, reason timeout."""

    def __init__(self, store: Store, clock: Clock, changes: Changes) -> None:
        self._store = store
        self._clock = clock
        self._changes = changes

    def enforce(self, rows: Iterable[JobRow]) -> None:
        for row in [row for row in rows if overdue(row, self._clock.now())]:
            with self._store.write() as tx:
                row, now = jobs.lock(tx, row.id), self._clock.now()
                if not overdue(row, now) or not (move := advance(row.status, Signal.OVERTIME)):
                    continue
                limit_s, used_s = float(row.spec["timeout_s"]), row.active_until(now)
                message = f"It was starting and running for {used_s:.0f} s, and timeout_s is {limit_s:g}"
                want(tx, row, move, Desired.CANCEL, message, "service", now)
            points.reach("a timeout is noted")
            self._changes.tell(row.id)

"""What Prometheus is told from the store at each scrape: a few sums, whatever the number of jobs."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select

from elastrain.service.jobs import ACTIVE, Status
from elastrain.service.store.engine import Tx
from elastrain.service.store.schema import attempts, jobs

_QUEUED = select(jobs.c.reason, func.count(), func.min(jobs.c.since)).where(
    jobs.c.status == Status.QUEUED.value, jobs.c.deleted_at.is_(None)
)
_WORKERS = select(
    func.coalesce(func.sum(jobs.c.workers_target), 0), func.coalesce(func.sum(jobs.c.workers_active), 0)
).where(jobs.c.status.in_([status.value for status in ACTIVE]))
_ATTEMPTS = select(attempts.c.state, func.count()).where(attempts.c.state != "ended")


class Queued(NamedTuple):
    reason: str
    jobs: int
    since: float  # of the one that waits for the longest time


def queued(tx: Tx) -> list[Queued]:
    """Queued jobs by the reason why they wait."""
    return [Queued(str(r), int(n), float(at)) for r, n, at in tx.execute(_QUEUED.group_by(jobs.c.reason))]


def workers(tx: Tx) -> tuple[int, int]:
    """(granted, training now), over all jobs"""
    granted, training = tx.execute(_WORKERS).one()
    return int(granted), int(training)


def open_attempts(tx: Tx) -> dict[str, int]:
    """{state: attempts in it}, those that have not ended"""
    return {str(state): int(n) for state, n in tx.execute(_ATTEMPTS.group_by(attempts.c.state))}

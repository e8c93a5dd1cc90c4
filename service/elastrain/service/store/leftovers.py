"""Ended jobs that nobody wants any more: marked as deleted, then removed table by table."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, delete, select, update

from elastrain.service.jobs import ENDED
from elastrain.service.store.engine import Tx
from elastrain.service.store.schema import events, jobs, log_segments, metrics

# the tables that grow with the length of a job; the others go with its row
_LONG = (metrics, events, log_segments)


def mark_older(tx: Tx, ended_before: float, now: float) -> list[str]:
    """Delete the jobs that ended before that time, but for those that are pinned; returns their ids."""
    c = jobs.c
    over = (c.status.in_([status.value for status in ENDED]), c.finished_at < ended_before)
    old = update(jobs).where(*over, c.pinned.is_(False), c.deleted_at.is_(None)).values(deleted_at=now)
    return list(tx.execute(old.returning(c.id)).scalars())


def marked(tx: Tx) -> list[str]:
    """Jobs that are deleted, and whose data is still there."""
    return list(tx.execute(select(jobs.c.id).where(jobs.c.deleted_at.is_not(None))).scalars())


def remove_some(tx: Tx, job: str, rows: int) -> bool:
    """Remove up to so many rows of the job's long tables, or else the rest; True if nothing is left."""
    if any(_some(tx, table, job, rows) for table in _LONG):
        return False
    tx.execute(delete(jobs).where(jobs.c.id == job, jobs.c.deleted_at.is_not(None)))
    return True


def _some(tx: Tx, table: Table, job: str, rows: int) -> int:
    c: Any = table.c
    last = select(c.position).where(c.job == job).order_by(c.position).offset(rows - 1).limit(1)
    upto = tx.execute(last).scalar()
    if upto is None:  # fewer are left, and go with the job
        return 0
    return tx.execute(delete(table).where(c.job == job, c.position <= upto)).rowcount

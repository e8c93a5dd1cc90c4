"""Ended jobs that nobody wants any more: marked as deleted, then removed table by table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Row, Select, Table, bindparam, delete, func, select, update

from elastrain.service.jobs import ENDED
from elastrain.service.store.engine import Tx
from elastrain.service.store.schema import checkpoints, events, idempotency, jobs, log_segments, metrics

# the tables that grow with the length of a job; the others go with its row
_LONG = (metrics, events, log_segments)
_HOLDINGS: Select[Any] = (
    select(
        jobs.c.id,
        jobs.c.name,
        func.count(checkpoints.c.step),
        func.coalesce(func.sum(checkpoints.c.bytes), 0),
    )
    .outerjoin(checkpoints, checkpoints.c.job == jobs.c.id)
    .group_by(jobs.c.id, jobs.c.name)
)
_HOLDINGS_OF = _HOLDINGS.where(jobs.c.id.in_(bindparam("jobs", expanding=True)))


class Holding(NamedTuple):
    """What a job has in object storage."""

    job: str
    name: str
    checkpoints: int
    bytes: int


def holdings(tx: Tx, ids: Sequence[str]) -> dict[str, Holding]:
    """{job: what goes with it}"""
    found = [_holding(row) for row in tx.execute(_HOLDINGS_OF, {"jobs": ids})] if ids else []
    return {holding.job: holding for holding in found}


def older(tx: Tx, ended_before: float) -> list[Holding]:
    """What `mark_older` would delete."""
    return [_holding(row) for row in tx.execute(_HOLDINGS.where(*_over(ended_before)))]


def mark_older(tx: Tx, ended_before: float, now: float) -> list[str]:
    """Delete the jobs that ended before that time, but for those that are pinned; returns their ids."""
    old = update(jobs).where(*_over(ended_before)).values(deleted_at=now)
    return list(tx.execute(old.returning(jobs.c.id)).scalars())


def _over(ended_before: float) -> list[ColumnElement[bool]]:
    c, ended = jobs.c, [status.value for status in ENDED]
    return [c.status.in_(ended), c.finished_at < ended_before, c.pinned.is_(False), c.deleted_at.is_(None)]


def _holding(row: Row[Any]) -> Holding:
    job, name, count, size = list(row)
    return Holding(job, name, int(count), int(size))  # a sum may come as a decimal


def marked(tx: Tx) -> list[str]:
    """Jobs that are deleted, and whose data is still there."""
    return list(tx.execute(select(jobs.c.id).where(jobs.c.deleted_at.is_not(None))).scalars())


def remove_some(tx: Tx, job: str, rows: int) -> bool:
    """Remove up to so many rows of the job's long tables, or else the rest; True if nothing is left."""
    if any(_some(tx, table, job, rows) for table in _LONG):
        return False
    spent = update(idempotency).where(idempotency.c.job == job)
    tx.execute(spent.values(job=None, answer=None))  # that these keys were used is still to be known
    tx.execute(delete(jobs).where(jobs.c.id == job, jobs.c.deleted_at.is_not(None)))
    return True


def _some(tx: Tx, table: Table, job: str, rows: int) -> int:
    c: Any = table.c
    last = select(c.position).where(c.job == job).order_by(c.position).offset(rows - 1).limit(1)
    upto = tx.execute(last).scalar()
    if upto is None:  # fewer are left, and go with the job
        return 0
    return tx.execute(delete(table).where(c.job == job, c.position <= upto)).rowcount

"""Jobs that wait: they are many, and looked at in every round, so only what is asked of them is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select, update

from elastrain.service.jobs import Reason, Status
from elastrain.service.store.engine import Tx
from elastrain.service.store.rows import JobRow, QueuedRow, WaitingRow
from elastrain.service.store.schema import jobs as table

# ids in one question
MANY = 100
# rows that are made without a pause
AT_ONCE = 100

_WAITING = select(*(table.c[name] for name in WaitingRow._fields)).where(
    table.c.status == Status.QUEUED.value
)
_QUEUED = select(
    *(table.c[name] for name in QueuedRow._fields[:-1]), table.c.spec["resources", "gpu"].as_float()
).where(table.c.status == Status.QUEUED.value)
# in one order, as whoever locks several: two that meet do not wait for each other
_LOCK = (
    select(table.c.id)
    .where(table.c.id.in_(bindparam("ids", expanding=True)))
    .order_by(table.c.id)
    .with_for_update()
)
_TELL_WHY = (
    update(table)
    .where(
        table.c.id.in_(bindparam("ids", expanding=True)),
        table.c.status == Status.QUEUED.value,
        table.c.reason == bindparam("reason_before"),
        table.c.desired_version == bindparam("seen_version"),
    )
    .values(reason=bindparam("_reason"), message=bindparam("_message"), short_of=bindparam("_short_of"))
)
_SPARES = func.coalesce(table.c.spec["workers", "spares"].as_integer(), 0)
_BY_PROJECT = (
    select(table.c.project, func.count(), func.sum(table.c.workers_min + _SPARES))
    .where(table.c.status == Status.QUEUED.value)
    .group_by(table.c.project)
)
_QUEUED_SINCE = (
    select(table.c.id)
    .where(table.c.status == Status.QUEUED.value, table.c.since >= bindparam("at"))
    .order_by(table.c.priority.desc(), table.c.queued_at, table.c.id)
)
_BEFORE = select(func.count()).where(
    table.c.status == Status.QUEUED.value,
    table.c.since >= bindparam("at"),
    table.c.since <= bindparam("since"),
    table.c.priority >= bindparam("priority"),
    table.c.id != bindparam("id"),
)


def rows(tx: Tx, breathe: Callable[[], None] = lambda: None) -> list[WaitingRow]:
    """What changes about queued jobs, in no order. They are many, and looked at every second: breathe is
    called often, to let others compute."""
    found: list[WaitingRow] = []
    for part in tx.execute(_WAITING).partitions(AT_ONCE):
        found += map(WaitingRow._make, part)
        if len(part) == AT_ONCE:
            breathe()
    return found


def tell_why(
    tx: Tx, ids: Sequence[str], seen: WaitingRow, reason: Reason, message: str, short_of: int
) -> None:
    """Why these jobs wait, in one statement. seen: how each of them was; one that is no longer so is passed
    over."""
    said = {"_reason": reason.value, "_message": message, "_short_of": short_of}
    was = {"reason_before": seen.reason, "seen_version": seen.desired_version}
    if tx.dialect.name != "sqlite":  # which has no locks of rows
        tx.execute(_LOCK, {"ids": list(ids)}).all()
    tx.execute(_TELL_WHY, {"ids": list(ids), **was, **said})


def specs(
    tx: Tx, ids: Sequence[str], breathe: Callable[[], None] = lambda: None
) -> dict[str, dict[str, Any]]:
    """{job: its spec}"""
    found: dict[str, dict[str, Any]] = {}
    for first in range(0, len(ids), MANY):
        some = select(table.c.id, table.c.spec).where(table.c.id.in_(ids[first : first + MANY]))
        found.update((id, spec) for id, spec in tx.execute(some).all())
        breathe()
    return found


def since(tx: Tx, at: float) -> list[str]:
    """Those that were queued at that time or later, in the order of priority and age."""
    return list(tx.execute(_QUEUED_SINCE, {"at": at}).scalars().all())


def before(tx: Tx, at: float, row: JobRow) -> int:
    """How many of those that were queued since then stand before a job that is queued only now."""
    asked = {"at": at, "since": row.since, "priority": row.priority, "id": row.id}
    return int(tx.execute(_BEFORE, asked).scalar_one())


def shown(tx: Tx, project: str | None) -> list[QueuedRow]:
    """What the queue shows, in no order. project None: of all."""
    query = _QUEUED if project is None else _QUEUED.where(table.c.project == project)
    return [QueuedRow._make(row) for row in tx.execute(query).all()]


def by_project(tx: Tx) -> dict[str, tuple[int, int]]:
    """{project: (jobs that wait, workers that they need to start)}, of those that have any."""
    return {project: (int(count), int(workers)) for project, count, workers in tx.execute(_BY_PROJECT)}

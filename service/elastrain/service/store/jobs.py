"""Jobs: found, listed, and moved from one status to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from sqlalchemy import Integer, Row, Select, and_, bindparam, delete, func, insert, or_, select, update

from elastrain.service.jobs import ENDED, Desired, Reason, Status
from elastrain.service.store import feed
from elastrain.service.store.engine import Tx
from elastrain.service.store.rows import JobRow, TransitionRow
from elastrain.service.store.schema import attempts, job_labels, transitions
from elastrain.service.store.schema import jobs as table

# rows that are made without a pause
SOME = 20

_NAMES = [field.name for field in fields(JobRow)]
_STATUS, _DESIRED = _NAMES.index("status"), _NAMES.index("desired")
# every column, in the order of JobRow
_COLUMNS = [table.c[name] for name in _NAMES]
_BY_ID = select(*_COLUMNS).where(table.c.id == bindparam("id"))
_LOCKED = _BY_ID.with_for_update()
_BY_TOKEN = (
    select(*_COLUMNS, attempts.c.number)
    .join(attempts, attempts.c.job == table.c.id)
    .where(attempts.c.token_digest == bindparam("token_digest"))
)
_LOCKED_BY_TOKEN = _BY_TOKEN.with_for_update(of=table)
_NOTE, _LABEL = insert(transitions), insert(job_labels)
_CHANGE = update(table).where(table.c.id == bindparam("_id"))
_NEXT_NOTE = select(func.coalesce(func.max(transitions.c.number), 0) + 1).where(
    transitions.c.job == bindparam("job")
)
_IN_STATUS = (
    select(*_COLUMNS)
    .where(table.c.status.in_(bindparam("statuses", expanding=True)))
    .order_by(table.c.priority.desc(), table.c.queued_at, table.c.id)
)
_HISTORY = (
    select(*(transitions.c[name] for name in ("job", "status", "reason", "at", "actor")))
    .where(transitions.c.job.in_(bindparam("ids", expanding=True)))
    .order_by(transitions.c.job, transitions.c.number)
)
_NOTHING_LEFT: dict[str, Any] = {"workers_active": 0, "workers_target": 0, "workers_held": 0, "eta_s": None}


def set_labels(tx: Tx, id: str, labels: dict[str, str]) -> None:
    tx.execute(delete(job_labels).where(job_labels.c.job == id))
    add_labels(tx, id, labels)


def add_labels(tx: Tx, id: str, labels: dict[str, str]) -> None:
    if labels:
        tx.execute(_LABEL, [{"job": id, "key": k, "value": str(v)} for k, v in labels.items()])


def get(tx: Tx, id: str) -> JobRow:
    """Raises LookupError."""
    return _row(_one(tx.execute(_BY_ID, {"id": id}).first(), id))


def lock(tx: Tx, id: str) -> JobRow:
    """The job, and nobody else writes about it until this transaction ends. Raises LookupError."""
    return _row(_one(tx.execute(_LOCKED, {"id": id}).first(), id))


def of_token(tx: Tx, token_digest: str, lock: bool) -> tuple[JobRow, int] | None:
    """The job of a driver's token, and the number of its attempt. lock: as `lock`."""
    query = _LOCKED_BY_TOKEN if lock else _BY_TOKEN
    row = tx.execute(query, {"token_digest": token_digest}).first()
    return None if row is None else (_row(row[:-1]), row[-1])


def starting_with(tx: Tx, prefix: str, project: str | None, limit: int = 5) -> list[JobRow]:
    """Jobs whose id begins like this; project None: of all projects."""
    here = (table.c.id.startswith(prefix, autoescape=True), table.c.deleted_at.is_(None))
    query = select(*_COLUMNS).where(*here).order_by(table.c.id)
    if project is not None:
        query = query.where(table.c.project == project)
    return [_row(row) for row in tx.execute(query.limit(limit))]


def page(
    tx: Tx,
    *,
    statuses: Collection[str],
    project: str | None,
    labels: Sequence[tuple[str, str]],
    before: tuple[float, str] | None,
    limit: int,
) -> list[JobRow]:
    """Newest first, from just before (created_at, id)."""
    asked: dict[str, Any] = {"limit": limit}
    asked |= {"statuses": list(statuses)} if statuses else {}
    asked |= {"project": project} if project is not None else {}
    asked |= {"at": before[0], "id": before[1]} if before is not None else {}
    for number, (key, value) in enumerate(labels):
        asked |= {f"key_{number}": key, f"value_{number}": value}
    query = _page(bool(statuses), project is not None, len(labels), before is not None)
    return [_row(row) for row in tx.execute(query, asked).all()]


@lru_cache(maxsize=64)
def _page(statuses: bool, project: bool, labels: int, before: bool) -> Select[Any]:
    """The question, made once for each kind of it: making it takes longer than the answer to a short one."""
    newest = (table.c.created_at.desc(), table.c.id.desc())
    query = select(*_COLUMNS).where(table.c.deleted_at.is_(None)).order_by(*newest)
    if statuses:
        query = query.where(table.c.status.in_(bindparam("statuses", expanding=True)))
    if project:
        query = query.where(table.c.project == bindparam("project"))
    for number in range(labels):
        query = query.where(
            select(job_labels.c.job)
            .where(
                job_labels.c.job == table.c.id,
                job_labels.c.key == bindparam(f"key_{number}"),
                job_labels.c.value == bindparam(f"value_{number}"),
            )
            .exists()
        )
    if before:
        older = and_(table.c.created_at == bindparam("at"), table.c.id < bindparam("id"))
        query = query.where(or_(table.c.created_at < bindparam("at"), older))
    return query.limit(bindparam("limit", type_=Integer))


def in_status(tx: Tx, statuses: Iterable[Status], breathe: Callable[[], None] = lambda: None) -> list[JobRow]:
    """In the order of the queue: higher priority first, then the longest waiting. breathe: is called now and
    then, to let others compute."""
    found: list[JobRow] = []
    for part in tx.execute(_IN_STATUS, {"statuses": [status.value for status in statuses]}).partitions(SOME):
        found += map(_row, part)
        if len(part) == SOME:
            breathe()
    return found


def alive(tx: Tx) -> list[JobRow]:
    """Every job that has not ended, in the order of the queue."""
    return in_status(tx, [status for status in Status if status not in ENDED])


def project_of(tx: Tx, id: str) -> str | None:
    return tx.execute(select(table.c.project).where(table.c.id == id)).scalar()


def counts(tx: Tx) -> dict[str, int]:
    """{status: jobs in it}, for those that have any."""
    there = select(table.c.status, func.count()).where(table.c.deleted_at.is_(None))
    query = there.group_by(table.c.status)
    return {str(status): int(number) for status, number in tx.execute(query)}


def change(tx: Tx, id: str, **values: Any) -> None:
    """Set columns that are not the status."""
    tx.execute(_CHANGE, {"_id": id, **_plain(values)})


def move(
    tx: Tx,
    row: JobRow,
    status: Status,
    reason: Reason,
    message: str | None,
    actor: str,
    at: float,
    **values: Any,
) -> JobRow:
    """Put a locked job into another status, with a transition and an event; `values` are further columns.

    at: when; a clock that is behind, such as a driver's, takes nothing back.
    """
    at = max(at, row.since)
    spares = int(row.spec["workers"].get("spares", 0))
    if status in ENDED:
        values = {**_NOTHING_LEFT, "finished_at": at, **values}
    elif status in (Status.QUEUED, Status.PAUSED):  # back in the queue it has the place that its age gives
        values = {**_NOTHING_LEFT, **values}
    elif status is Status.STARTING:
        held = values.get("workers_target", row.workers_target) + spares
        values = {"workers_active": 0, "workers_held": held, "eta_s": None, **values}
    values = {"active_s": row.active_until(at), **values}
    if status is Status.RUNNING and row.started_at is None:
        values["started_at"] = at
    change(tx, row.id, status=status, reason=reason, message=message, since=at, **values)
    _note(tx, row.id, status, reason, message or f"The job is {status}", actor, at)
    return get(tx, row.id)


def history(tx: Tx, ids: Collection[str]) -> dict[str, list[TransitionRow]]:
    """The transitions of these jobs, oldest first."""
    found: dict[str, list[TransitionRow]] = {id: [] for id in ids}
    for job, *rest in tx.execute(_HISTORY, {"ids": list(ids)}).all():
        found[job].append(TransitionRow(*rest))
    return found


def _note(tx: Tx, id: str, status: Status, reason: Reason, message: str, actor: str, at: float) -> None:
    number = tx.execute(_NEXT_NOTE, {"job": id}).scalar_one()
    values = {"status": status.value, "reason": reason.value, "at": at, "actor": actor}
    tx.execute(_NOTE, {"job": id, "number": number, **values})
    feed.add_event(tx, id, f"job.{status}", message, {"status": status, "reason": reason, "actor": actor}, at)


def _one(row: Row[Any] | None, id: str) -> Row[Any]:
    if row is None:
        raise LookupError(f"There is no job {id!r}")
    return row


def _row(row: Row[Any] | tuple[Any, ...]) -> JobRow:
    """By position: ten thousand rows by name take a second."""
    values = list(row)
    values[_STATUS], values[_DESIRED] = Status(values[_STATUS]), Desired(values[_DESIRED])
    return JobRow(*values)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Enums as the strings that they are: some database drivers would store their names."""
    return {k: v.value if isinstance(v, Status | Desired | Reason) else v for k, v in values.items()}

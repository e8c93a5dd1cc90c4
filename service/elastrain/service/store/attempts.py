"""Attempts: opened before Ray hears of them, claimed by one driver, ended once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from sqlalchemy import CursorResult, Row, bindparam, insert, select, update

from elastrain.service.store.engine import Tx
from elastrain.service.store.rows import AttemptRow
from elastrain.service.store.schema import attempts as table
from elastrain.service.store.schema import jobs

# every column, in the order of AttemptRow
_COLUMNS = [table.c[field.name] for field in fields(AttemptRow)]
_BY_NUMBER = select(*_COLUMNS).where(table.c.job == bindparam("job"), table.c.number == bindparam("number"))
_NOT_ENDED = select(*_COLUMNS).where(table.c.state != "ended").order_by(table.c.created_at)
_OF_JOB = select(*_COLUMNS).where(table.c.job == bindparam("job")).order_by(table.c.number)
_CURRENT = (
    select(*_COLUMNS)
    .join(jobs, (jobs.c.id == table.c.job) & (jobs.c.attempt == table.c.number))
    .where(table.c.job.in_(bindparam("jobs", expanding=True)))
)
_CHANGE = update(table).where(table.c.job == bindparam("_job"), table.c.number == bindparam("_number"))


class Line(NamedTuple):
    """What is asked often about a driver: current is its job's attempt, number its own."""

    job: str
    desired_version: int
    current: int
    number: int
    outcome: str | None


_LINE = (
    select(jobs.c.id, jobs.c.desired_version, jobs.c.attempt, table.c.number, table.c.outcome)
    .join(jobs, jobs.c.id == table.c.job)
    .where(table.c.token_digest == bindparam("token_digest"))
)
_LINES = (
    select(jobs.c.id, jobs.c.desired_version, jobs.c.attempt, table.c.number, table.c.outcome)
    .join(jobs, jobs.c.id == table.c.job)
    .where(table.c.state != "ended")
)


def open_new(
    tx: Tx,
    job: str,
    number: int,
    *,
    submission_id: str,
    code: str,
    code_digest: str,
    token_secret: str,
    cluster: str,
    at: float,
) -> None:
    tx.execute(
        insert(table).values(
            job=job,
            number=number,
            submission_id=submission_id,
            state="submitting",
            created_at=at,
            code=code,
            code_digest=code_digest,
            token_secret=token_secret,
            cluster=cluster,
            acked_seq=-1,
        )
    )


def get(tx: Tx, job: str, number: int) -> AttemptRow | None:
    return _row(tx.execute(_BY_NUMBER, {"job": job, "number": number}).first())


def current(tx: Tx, ids: Sequence[str]) -> dict[str, AttemptRow]:
    """{job: its current attempt}, of those that have one."""
    return {row.job: row for row in _rows(tx.execute(_CURRENT, {"jobs": ids}))} if ids else {}


def line(tx: Tx, token_digest: str) -> Line | None:
    row = tx.execute(_LINE, {"token_digest": token_digest}).first()
    return None if row is None else Line._make(row)


def lines(tx: Tx) -> list[Line]:
    """Of all attempts that have not ended."""
    return [Line._make(row) for row in tx.execute(_LINES).all()]


def not_ended(tx: Tx) -> list[AttemptRow]:
    return _rows(tx.execute(_NOT_ENDED))


def with_driver(tx: Tx) -> list[AttemptRow]:
    """Those whose driver may still be there, or come."""
    return [attempt for attempt in not_ended(tx) if attempt.has_driver]


def of_job(tx: Tx, job: str) -> list[AttemptRow]:
    return _rows(tx.execute(_OF_JOB, {"job": job}))


def change(tx: Tx, job: str, number: int, **values: Any) -> None:
    tx.execute(_CHANGE, {"_job": job, "_number": number, **values})


def acknowledge(tx: Tx, job: str, number: int, seq: int) -> None:
    """All facts up to this one are written."""
    change(tx, job, number, acked_seq=seq)


def _row(row: Row[Any] | None) -> AttemptRow | None:
    return None if row is None else AttemptRow(*list(row))


def _rows(found: CursorResult[Any]) -> list[AttemptRow]:
    return [AttemptRow(*list(row)) for row in found.all()]

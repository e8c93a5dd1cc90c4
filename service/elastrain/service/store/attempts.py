"""Attempts: opened before Ray hears of them, claimed by one driver, ended once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Row, insert, select, update

from elastrain.service.store.engine import Tx
from elastrain.service.store.rows import AttemptRow
from elastrain.service.store.schema import attempts as table


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
    return _row(tx.execute(select(table).where(table.c.job == job, table.c.number == number)).first())


def by_token(tx: Tx, token_digest: str) -> AttemptRow | None:
    return _row(tx.execute(select(table).where(table.c.token_digest == token_digest)).first())


def not_ended(tx: Tx) -> list[AttemptRow]:
    return _rows(tx.execute(select(table).where(table.c.state != "ended").order_by(table.c.created_at)))


def with_driver(tx: Tx) -> list[AttemptRow]:
    """Those whose driver may still be there, or come."""
    return [attempt for attempt in not_ended(tx) if attempt.has_driver]


def of_job(tx: Tx, job: str) -> list[AttemptRow]:
    return _rows(tx.execute(select(table).where(table.c.job == job).order_by(table.c.number)))


def change(tx: Tx, job: str, number: int, **values: Any) -> None:
    tx.execute(update(table).where(table.c.job == job, table.c.number == number).values(**values))


def _row(row: Row[Any] | None) -> AttemptRow | None:
    return None if row is None else AttemptRow(**row._mapping)


def _rows(rows: Iterable[Row[Any]]) -> list[AttemptRow]:
    return [AttemptRow(**row._mapping) for row in rows]

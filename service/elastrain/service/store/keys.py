"""Idempotency keys: the answers of requests that may be repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.exc import IntegrityError

from elastrain.service.store.engine import Tx
from elastrain.service.store.schema import idempotency as table

_FIND = select(table.c.body_digest, table.c.answer, table.c.job).where(
    table.c.token == bindparam("token"), table.c.route == bindparam("route"), table.c.key == bindparam("key")
)
_ADD = insert(table)


@dataclass(frozen=True)
class KeyRow:
    body_digest: str
    # 0.1.0 kept only the job that it was about; neither is left of a deleted job
    answer: dict[str, Any] | None
    job: str | None


class KeyTaken(Exception):
    """Another transaction has used the key meanwhile: roll back, and look again."""


def find(tx: Tx, token: str, route: str, key: str) -> KeyRow | None:
    """The first use of this key."""
    row = tx.execute(_FIND, {"token": token, "route": route, "key": key}).first()
    return None if row is None else KeyRow(*row)


def add(
    tx: Tx, token: str, route: str, key: str, body_digest: str, job: str | None, answer: Any, at: float
) -> None:
    """Raises KeyTaken."""
    values = {"token": token, "route": route, "key": key, "body_digest": body_digest}
    try:
        tx.execute(_ADD, {**values, "job": job, "answer": answer, "at": at})
    except IntegrityError as error:
        raise KeyTaken(key) from error


def forget_before(tx: Tx, at: float) -> None:
    """Whoever repeats a request does so soon: older keys are not kept."""
    tx.execute(delete(table).where(table.c.at < at))

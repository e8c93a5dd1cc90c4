"""Projects: what they may use at a time, and how they share. One without a row has no limits."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select, update

from elastrain.service.store.engine import Tx, inserted
from elastrain.service.store.rows import ProjectRow
from elastrain.service.store.schema_queue import projects as table


def every(tx: Tx) -> list[ProjectRow]:
    return [ProjectRow(**row._mapping) for row in tx.execute(select(table).order_by(table.c.name))]


def find(tx: Tx, name: str) -> ProjectRow | None:
    row = tx.execute(select(table).where(table.c.name == name)).first()
    return None if row is None else ProjectRow(**row._mapping)


def add(tx: Tx, name: str, at: float, **values: Any) -> bool:
    """False if there is one of that name."""
    return inserted(tx, insert(table).values(name=name, created_at=at, **{"weight": 1.0, **values}))


def change(tx: Tx, name: str, **values: Any) -> None:
    tx.execute(update(table).where(table.c.name == name).values(**values))

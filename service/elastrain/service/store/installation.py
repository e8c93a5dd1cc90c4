"""Single facts about this installation: its id, what the reconciler last saw, when it last moved."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select, update

from elastrain.service.ids import new_installation_id
from elastrain.service.store.engine import Tx, inserted
from elastrain.service.store.schema import facts as table


def read(tx: Tx, name: str) -> tuple[float, Any] | None:
    """(when it was written, what)"""
    row = tx.execute(select(table.c.at, table.c.value).where(table.c.name == name)).first()
    return None if row is None else (row[0], row[1])


def write(tx: Tx, name: str, value: Any, at: float) -> None:
    change = update(table).where(table.c.name == name).values(at=at, value=value)
    new = insert(table).values(name=name, at=at, value=value)
    if tx.execute(change).rowcount == 0 and not inserted(tx, new):
        tx.execute(change)  # of two that write it for the first time the later one counts


def installation_id(tx: Tx, at: float) -> str:
    """Made once, in a writing transaction; part of every submission id, so that installations never mix."""
    found = read(tx, "installation")
    if found is None:  # of two that make one at once the first one counts
        inserted(tx, insert(table).values(name="installation", at=at, value=new_installation_id()))
        found = read(tx, "installation")
    assert found is not None
    return str(found[1])

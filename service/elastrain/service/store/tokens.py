"""Tokens, as digests."""

from __future__ import annotations

import secrets

from sqlalchemy import insert, select, update

from elastrain.service.store.engine import Tx, inserted
from elastrain.service.store.rows import TokenRow
from elastrain.service.store.schema import tokens as table


def find(tx: Tx, digest: str) -> TokenRow | None:
    c = table.c
    query = select(c.id, c.name, c.role, c.project, c.expires_at, c.last_used_at).where(c.digest == digest)
    row = tx.execute(query).first()
    return None if row is None else TokenRow(*row)


def add(tx: Tx, digest: str, *, name: str, role: str, project: str | None, at: float) -> str:
    """Returns the token's id: a new one, or that of the same token if another process has just added it."""
    id = f"t-{secrets.token_hex(6)}"
    values = {"id": id, "digest": digest, "name": name, "role": role, "project": project, "created_at": at}
    known = None if inserted(tx, insert(table).values(**values)) else find(tx, digest)
    return id if known is None else known.id


def used(tx: Tx, id: str, at: float) -> None:
    tx.execute(update(table).where(table.c.id == id).values(last_used_at=at))

"""Code packages and who may use them."""

from __future__ import annotations

from sqlalchemy import insert, select

from elastrain.service.store.engine import Tx, inserted
from elastrain.service.store.schema import packages


def has_package(tx: Tx, sha256: str, project: str) -> bool:
    c = packages.c
    return tx.execute(select(c.bytes).where(c.sha256 == sha256, c.project == project)).first() is not None


def add_package(tx: Tx, sha256: str, project: str, size: int, at: float) -> bool:
    """False if this project had it already, or gets it at this moment."""
    row = {"sha256": sha256, "project": project, "bytes": size, "created_at": at}
    return inserted(tx, insert(packages).values(**row))

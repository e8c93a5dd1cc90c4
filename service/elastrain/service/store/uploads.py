"""Code packages and who may use them; keys that make a repeated submit the same submit."""

from __future__ import annotations

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from elastrain.service.store.engine import Tx
from elastrain.service.store.schema import idempotency, packages


def has_package(tx: Tx, sha256: str, project: str) -> bool:
    c = packages.c
    return tx.execute(select(c.bytes).where(c.sha256 == sha256, c.project == project)).first() is not None


def add_package(tx: Tx, sha256: str, project: str, size: int, at: float) -> bool:
    """False if this project had it already."""
    if has_package(tx, sha256, project):
        return False
    tx.execute(insert(packages).values(sha256=sha256, project=project, bytes=size, created_at=at))
    return True


def find_key(tx: Tx, token: str, route: str, key: str) -> tuple[str, str] | None:
    """(digest of the body, job) of the first use of this key."""
    c = idempotency.c
    row = tx.execute(
        select(c.body_digest, c.job).where(c.token == token, c.route == route, c.key == key)
    ).first()
    return None if row is None else (row[0], row[1])


class KeyTaken(Exception):
    """Another transaction has used the key meanwhile: roll back, and look again."""


def add_key(tx: Tx, token: str, route: str, key: str, body_digest: str, job: str, at: float) -> None:
    """Raises KeyTaken."""
    values = {"token": token, "route": route, "key": key, "body_digest": body_digest, "job": job, "at": at}
    try:
        tx.execute(insert(idempotency).values(**values))
    except IntegrityError as error:
        raise KeyTaken(key) from error

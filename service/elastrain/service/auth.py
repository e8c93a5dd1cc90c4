"""Tokens and roles. A token is 32 random bytes; the store has only its sha256: reading it opens nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elastrain.service.clock import Clock
from elastrain.service.errors import Forbidden, Unauthenticated, Unavailable
from elastrain.service.store import Store, tokens

Role = Literal["admin", "member", "viewer"]
RANKS: dict[str, int] = {"viewer": 0, "member": 1, "admin": 2}
# a token's last use is written at most once per minute: reads should not become writes
LAST_USED_EVERY_S = 60.0
# a token that was found is believed for so long: one that is taken away opens nothing more after that
BELIEVED_S = 2.0
BELIEVED = 1000  # tokens


@dataclass(frozen=True)
class Actor:
    """Who is asking: the owner of a token. An admin has no project and sees all of them."""

    token_id: str
    name: str
    role: Role
    project: str | None = None

    def view(self) -> dict[str, object]:
        return {"id": self.token_id, "name": self.name, "role": self.role, "project": self.project}

    def sees(self, project: str) -> bool:
        """Whether things of this project exist for the actor at all."""
        return self.project is None or self.project == project

    def must(self, role: Role, to: str) -> None:
        """Raises Forbidden unless the actor's role is at least `role`."""
        if RANKS[self.role] < RANKS[role]:
            raise Forbidden(
                f"{self.name!r} is a {self.role}; to {to} takes the role {role}",
                hint="Ask an admin for a token with that role.",
            )


class Auth:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[float, float, Actor]] = {}  # digest -> (from, until, who)

    def known(self, bearer: str | None) -> Actor | None:
        """The owner of a token that was authenticated a moment ago; asks nobody, so it never waits."""
        since, until, actor = self._known.get(digest(bearer or ""), (0.0, 0.0, None))
        return actor if since <= self._clock.now() < until else None  # before `since`: the clock was set back

    def authenticate(self, bearer: str | None) -> Actor:
        """The owner of a token. Raises Unauthenticated for a missing, unknown or expired one."""
        if not bearer:
            raise Unauthenticated(
                "No token was sent",
                hint="Send `Authorization: Bearer TOKEN`; `elastrain up` saves one in its home.",
            )
        now = self._clock.now()
        with self._store.read() as tx:
            found = tokens.find(tx, digest(bearer))
        if found is None or (found.expires_at is not None and found.expires_at <= now):
            raise Unauthenticated("This token is unknown or has expired", hint="Ask an admin for a new one.")
        if found.last_used_at is None or now - found.last_used_at > LAST_USED_EVERY_S:
            # who may read need not wait until this can be noted
            with contextlib.suppress(Unavailable), self._store.write() as tx:
                tokens.used(tx, found.id, now)
        actor = Actor(found.id, found.name, found.role, found.project)
        if len(self._known) >= BELIEVED:
            self._known.clear()
        expires_at = found.expires_at if found.expires_at is not None else float("inf")
        self._known[digest(bearer)] = (now, min(now + BELIEVED_S, expires_at), actor)
        return actor

    def ensure_admin_token(self, file: Path) -> str:
        """The admin token in `file` (mode 0600), made on first use, and known to the store afterwards.

        The file is written before the store: a kill in between leaves a token that the next call registers.
        """
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh = file.with_name(f"{file.name}.{os.getpid()}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
                out.write(new_token())
            fresh.replace(file)
        token = file.read_text().strip()
        with self._store.write() as tx:
            if tokens.find(tx, digest(token)) is None:
                tokens.add(tx, digest(token), name="admin", role="admin", project=None, at=self._clock.now())
        return token


def new_token(prefix: str = "elt") -> str:
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()

"""Tokens: only digests are kept; the admin's own survives a kill between file and store."""

from pathlib import Path

import pytest

from elastrain.service.auth import BELIEVED_S, digest
from elastrain.service.errors import Unauthenticated
from elastrain.service.store import tokens
from world import START_S, World


def test_the_admin_token_is_made_once_for_its_owner_only(world: World, tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = world.control.auth.ensure_admin_token(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert world.control.auth.ensure_admin_token(file) == token
    actor = world.control.authenticate(token)
    assert (actor.role, actor.project) == ("admin", None)
    assert token not in world.stored()


def test_a_token_file_that_the_store_does_not_know_yet_is_registered(world: World, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("elt_written-before-the-kill\n")
    assert world.control.auth.ensure_admin_token(file) == "elt_written-before-the-kill"
    assert world.control.authenticate("elt_written-before-the-kill").role == "admin"


def test_missing_unknown_and_expired_tokens_are_refused(world: World) -> None:
    with world.store.write() as tx:
        id = tokens.add(tx, digest("short"), name="short", role="member", project="vision", at=START_S)
    assert world.control.authenticate("short").token_id == id
    from elastrain.service.store.schema import tokens as table

    with world.store.write() as tx:
        tx.execute(table.update().where(table.c.id == id).values(expires_at=START_S))
    for token in (None, "", "nobody", "short"):
        with pytest.raises(Unauthenticated):
            world.control.authenticate(token)


def test_a_token_is_believed_for_a_moment_only_and_never_beyond_its_end(world: World) -> None:
    auth = world.control.auth
    with world.store.write() as tx:
        tokens.add(tx, digest("long"), name="long", role="member", project=None, at=START_S)
    assert auth.known("long") is None and auth.known(None) is None, "nobody has shown it yet"
    actor = auth.authenticate("long")
    assert auth.known("long") == actor
    world.clock.pass_s(BELIEVED_S)
    assert auth.known("long") is None
    from elastrain.service.store.schema import tokens as table

    with world.store.write() as tx:
        tx.execute(table.update().values(expires_at=world.clock.now() + BELIEVED_S / 2))
    assert auth.authenticate("long") == auth.known("long")
    world.clock.pass_s(BELIEVED_S / 2)
    assert auth.known("long") is None

"""What the service leans on gives way: a locked, full or read-only database, a Ray that is none."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from elastrain.service.errors import Unavailable
from elastrain.service.migrations import migrate
from elastrain.service.ray_jobs import RayJobs, RayUnreachable
from elastrain.service.settings import SettingsError
from elastrain.service.store import engine
from world import ADMIN, World


@pytest.fixture
def file(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def test_writers_behind_a_lock_of_another_program_do_not_wait_for_each_other_in_turn(
    file: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BUSY_TIMEOUT_S", "TURN_TIMEOUT_S"):
        monkeypatch.setattr(engine, name, 0.05)
    file.restart()
    held, done = threading.Event(), threading.Event()

    def first() -> None:
        with file.store.write():
            held.set()
            done.wait(60)

    holder = threading.Thread(target=first)
    holder.start()
    held.wait(60)
    with pytest.raises(Unavailable, match="locked"):
        file.submit()
    done.set()
    holder.join()
    with closing(sqlite3.connect(str(file.settings.home / "elastrain.db"))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked by another program"):
            file.submit()
        assert file.control.list_jobs(actor=ADMIN)["items"] == [], "who reads goes on"
        other.rollback()
    assert file.status(file.submit()) == "queued"


def test_a_token_opens_its_door_although_its_use_cannot_be_noted(
    file: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = file.control.auth.ensure_admin_token(tmp_path / "token")
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.05)
    file.restart()
    with closing(sqlite3.connect(str(file.settings.home / "elastrain.db"))) as other:
        other.execute("BEGIN IMMEDIATE")
        assert file.control.authenticate(token).role == "admin"
        other.rollback()


@contextmanager
def every_connection(world: World, pragma: str) -> Iterator[None]:
    """SQLite with this setting, on every connection that is opened in the block."""

    def prepare(made: sqlite3.Connection, _record: object) -> None:
        made.execute(f"PRAGMA {pragma}")

    world.store._engine.dispose()
    event.listen(world.store._engine, "connect", prepare)
    yield
    event.remove(world.store._engine, "connect", prepare)
    world.store._engine.dispose()


def test_a_full_disk_and_a_read_only_file_are_called_what_they_are(file: World) -> None:
    with file.store.read() as tx:
        pages = tx.exec_driver_sql("PRAGMA page_count").scalar_one()
    with every_connection(file, f"max_page_count={pages + 1}"):
        large = {f"V{part}": "x" * 10_000 for part in range(20)}
        with pytest.raises(Unavailable, match="The disk of the database is full"):
            file.submit(env=large)
    with every_connection(file, "query_only=1"):
        with pytest.raises(Unavailable, match="read-only"):
            file.submit()
        assert file.control.list_jobs(actor=ADMIN)["items"] is not None, "who reads goes on"
    assert file.status(file.submit()) == "queued", "and it is well again by itself"


@pytest.mark.stores
def test_a_postgresql_that_has_become_a_standby_is_away_and_no_fault(postgres: Any, tmp_path: Path) -> None:
    url = postgres.fresh()
    world = World(tmp_path, database=url)
    id = world.submit()
    with world.store.write() as tx:
        name = url.rsplit("/", 1)[1]
        tx.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    world.store._engine.dispose()
    with pytest.raises(Unavailable, match="read-only"):
        world.submit()
    with pytest.raises(Unavailable, match="read-only"):
        world.round()
    assert world.status(id) == "queued"
    world.store.close()
    postgres.drop(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "cannot be used"),
        ("mysql://user:secret@host/name", "cannot be used"),
        ("postgresql+psycopg2://user:secret@host/name", "cannot be used"),
        ("sqlite:///{folder}/no-database", "names something else: file is not a database"),
        ("sqlite:////proc/nowhere/at.db", "cannot be used"),
        ("postgresql://user:secret@host:port/name", "cannot be used"),
    ],
)
def test_an_address_that_is_no_database_is_named_at_the_start(tmp_path: Path, url: str, said: str) -> None:
    (tmp_path / "no-database").write_text("hello, I am a text file\n" * 100)
    with pytest.raises(SettingsError, match=said) as caught:
        migrate(url.format(folder=tmp_path))
    assert "ELASTRAIN_DATABASE_URL" in str(caught.value) and "secret" not in str(caught.value)


def test_a_postgresql_address_is_understood_as_everybody_writes_it() -> None:
    assert engine.make_engine("postgresql://user@127.0.0.1:1/name").driver == "psycopg"


@pytest.fixture
def stranger() -> Iterator[Callable[[bytes], RayJobs]]:
    """Something that is no Ray, and answers everything with the same bytes."""
    answer = [b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer[0])))
            self.end_headers()
            self.wfile.write(answer[0])

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    ray = RayJobs(f"http://127.0.0.1:{server.server_port}")

    def says(data: bytes) -> RayJobs:
        answer[0] = data
        return ray

    yield says
    ray.close()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"<html>", b"null", b"[]", b"{}", b'"x"', b"7", b"[null]", b"[7]", b'{"data": null}', b"\xff\xfe"],
)
def test_whatever_answers_at_rays_address_is_no_fault_of_a_round(
    stranger: Callable[[bytes], RayJobs], answer: bytes
) -> None:
    ray = stranger(answer)
    asked: list[Callable[[], Any]] = [ray.version, ray.session, ray.jobs, ray.nodes]
    asked += [lambda: ray.job("x"), lambda: ray.logs("x")]
    for ask in asked:
        try:
            assert ask() in ([], ""), "nothing can be made of that"
        except RayUnreachable as error:
            assert "Ray" in str(error) or "answer" in str(error)

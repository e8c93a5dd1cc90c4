"""Opening the database, and the two kinds of transaction: one that reads, one that may write.

SQLite takes one writer at a time. A transaction that begins as a reader and writes later can fail with
"database is locked" however long it waits, so every writing transaction says so at its start (BEGIN
IMMEDIATE) and queues for the lock; readers go on beside it (WAL). PostgreSQL locks the job's row instead.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy
from pydantic_core import from_json, to_json
from sqlalchemy import Connection, Engine, Executable, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, OperationalError

from elastrain.service.errors import Unavailable
from elastrain.service.store.leader import Leadership
from elastrain.service.store.reached import LOCKED, NoDatabase, first_line, reached

# how long a writer queues for SQLite's lock
BUSY_TIMEOUT_S = 30.0
# and how long for those of its own process, of whom the first one may be queueing
TURN_TIMEOUT_S = 30.0
# SQLite's connections that are kept: as many as threads that answer requests, and a few. One beyond them is
# opened and closed for a single question, which costs more than the question
POOL = 50
# pages of SQLite's log: from the first number on writers wait for a moment so that it can begin anew, and
# from the second one whoever commits moves them into the file, if no service does (`Store.tidy`)
LOG_PAGES, LOG_PAGES_ALONE = 16_000, 25_000
# a PostgreSQL whose machine has vanished is given up after this long, by a new connection and by an open one
POSTGRES = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

Tx = Connection
"""An open transaction, handed to the functions of the store's other files."""


class Store:
    """The database. Threads may share it; each transaction has a connection of its own."""

    def __init__(self, url: str) -> None:
        """url: sqlite:///path or postgresql+psycopg://... The tables must exist: see `migrations.migrate`."""
        self.url = url
        self._engine = make_engine(url)
        self._mine = threading.local()
        self._leadership = Leadership(self._engine)
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        # SQLite has one writer at a time, and whoever finds it busy sleeps for longer and longer: here they
        # queue instead, and only those of other processes meet at the file
        self._writing = threading.Lock()

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """A consistent view; nothing that it does is kept. Raises Unavailable, and Invalid for a value that
        no database can look for.

        All questions of the block are answered as of one moment: a page that is put together of several would
        otherwise hold what was committed between two of them, and lack what came before that.
        """
        with reached(), self._engine.connect() as tx:
            if not self.is_sqlite:
                tx.execution_options(isolation_level="REPEATABLE READ")
            self._begin(tx, "BEGIN")
            yield tx

    @contextmanager
    def write(self) -> Iterator[Tx]:
        """Commits at the end, or rolls back if the block raises. Raises Unavailable: then nothing was kept,
        or, if the database went away during the commit itself, everything was. Raises Invalid for a value
        that no database can keep.

        A thread has one at a time: a second one inside it would wait for the first one's lock.
        """
        assert not getattr(self._mine, "writes", False), "a writing transaction inside another one"
        self._mine.writes = True
        try:
            with reached(), self._turn(), self._engine.connect() as tx, tx.begin():
                self._begin(tx, "BEGIN IMMEDIATE")
                yield tx
        finally:
            self._mine.writes = False

    def _turn(self) -> AbstractContextManager[None]:
        return self._in_turn() if self.is_sqlite else nullcontext()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Whoever is first may wait for another program's lock as long as he likes: those behind him do not
        wait for each of the others in turn."""
        if not self._writing.acquire(timeout=TURN_TIMEOUT_S):
            raise Unavailable(LOCKED, hint="Nothing is lost; try again.")
        try:
            yield
        finally:
            self._writing.release()

    def _begin(self, tx: Tx, how: str) -> None:
        """As `_begin_sqlite` does, and past SQLAlchemy: one listener makes each of its statements dearer."""
        if self.is_sqlite:
            try:
                tx.connection.driver_connection.execute(how)  # type: ignore[union-attr]
            except sqlite3.OperationalError as error:
                raise OperationalError(how, None, error) from error

    def tidy(self) -> None:
        """Move what SQLite's log holds into its file. Whoever commits would have to do it otherwise, twice a
        second under load, and all other writers would wait for the disk with him. Raises Unavailable."""
        if not self.is_sqlite:
            return
        with reached(), self._engine.connect() as tx:
            if _move_log(tx) >= LOG_PAGES:
                with self._turn():  # only when all of it was moved does it begin anew
                    _move_log(tx)

    def leads(self) -> bool:
        """Whether this process is the one that moves the jobs. Raises Unavailable."""
        with reached():
            return self._leadership.mine()

    def close(self) -> None:
        self._leadership.release()
        self._engine.dispose()


def _move_log(tx: Tx) -> int:
    """Beside those who read and write. -> pages in the log"""
    _busy, pages, _moved = tx.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").one()
    return int(pages)


def inserted(tx: Tx, statement: Executable) -> bool:
    """Whether the row is there now by this insert. False if another one has its key, also one that another
    process commits at this moment; the transaction goes on either way."""
    try:
        with tx.begin_nested():
            tx.execute(statement)
    except IntegrityError:
        return False
    return True


def open_engine(url: str) -> Engine:
    """For who uses its connections directly; they write with the option `elastrain_write`.

    Raises NoDatabase.
    """
    try:
        engine = make_engine(url)
    except (ArgumentError, NoSuchModuleError, ImportError, OSError, ValueError) as error:
        raise NoDatabase(f"cannot be used: {first_line(error)}") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def make_engine(url: str) -> Engine:
    place = make_url(url)
    if place.drivername == "postgresql":  # as everybody else writes it; SQLAlchemy would take another driver
        place = place.set(drivername="postgresql+psycopg")
    if place.get_backend_name() != "sqlite":
        return sqlalchemy.create_engine(
            place, pool_pre_ping=True, pool_size=10, max_overflow=30, connect_args=POSTGRES, **JSON
        )
    if place.database and place.database != ":memory:":
        Path(place.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sqlalchemy.create_engine(
        place,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        pool_size=POOL,
        max_overflow=60,
        **JSON,
    )
    # many rows in one statement, not in one call for each: SQLite gives the interpreter up at every step, and
    # whoever holds the writers' turn waits for it again
    engine.dialect.use_insertmanyvalues_wo_returning = True
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def written(value: Any) -> str:
    """As JSON text. Half a surrogate pair, which has no UTF-8, is escaped."""
    try:
        return to_json(value).decode()
    except ValueError:
        return json.dumps(value)


def parsed(text: str | bytes) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


# a job is written as JSON twice and read several times in each request
JSON: dict[str, Any] = {"json_serializer": written, "json_deserializer": parsed}


def _prepare_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # BEGIN is ours, see _begin_sqlite
    cursor = connection.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "foreign_keys=ON",
        f"wal_autocheckpoint={LOG_PAGES_ALONE}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("elastrain_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

"""Of several service processes on one database, one leads: it runs the reconciler, the others stand by.

On PostgreSQL the leader holds a session's advisory lock, on SQLite the lock of a file beside the database:
both end with the process that holds them, by themselves. Why a leader, though rows are guarded anyway:
docs/decisions/0020-one-reconciler-leads.md.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, text

log = logging.getLogger(__name__)

# any number, the same in every service process; advisory locks belong to one database and have no names
LEADER_LOCK = 0x656C6C64
# the server lets go of a leader whose machine has vanished after 10 + 3 * 5 seconds
NOTICE_A_LOST_HOST = (
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
)


class Lock(Protocol):
    concern: int  # how loudly it is said that another process holds it
    caveat: str

    def held(self) -> bool:
        """Whether it is ours now; takes it if nobody has it. Raises what the database raises."""

    def release(self) -> None: ...


class Leadership:
    """Whether this process leads. One thread asks."""

    def __init__(self, engine: Engine) -> None:
        file = engine.url.database if engine.dialect.name == "sqlite" else None
        self._lock: Lock = _Session(engine) if file is None else _File(Path(f"{file}.leader"))
        self._was: bool | None = None

    def mine(self) -> bool:
        """Ask again at the start of every round: a session can be lost. Raises what the database raises."""
        now = self._lock.held()
        if now is not self._was and now:
            log.info("this process moves the jobs now")
        elif now is not self._was:
            log.log(self._lock.concern, "another process moves the jobs: standing by%s", self._lock.caveat)
        self._was = now
        return now

    def release(self) -> None:
        """Let another process lead. Safe to call twice."""
        self._was = None
        self._lock.release()


class _Session:
    """PostgreSQL's advisory lock, on a connection of its own for as long as it is held."""

    concern, caveat = logging.INFO, ""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    def held(self) -> bool:
        if self._connection is not None:
            try:
                self._connection.execute(text("SELECT 1"))
                return True
            except Exception:
                self.release()  # whoever noticed first may lead already
                raise
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            taken = connection.execute(text(f"SELECT pg_try_advisory_lock({LEADER_LOCK})")).scalar_one()
            if taken:
                connection.exec_driver_sql(NOTICE_A_LOST_HOST)
                self._connection = connection
                return True
        finally:
            if self._connection is None:
                connection.close()
        return False

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()  # closed for good: back in the pool it would keep the lock
            connection.close()


class _File:
    """Seen by processes of this machine only: on a volume that two machines share, both would lead."""

    concern = logging.WARNING
    caveat = "; SQLite is for one process, or for one machine at most: several need PostgreSQL"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def held(self) -> bool:
        if self._handle is not None:
            return True
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._handle = handle
        return True

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

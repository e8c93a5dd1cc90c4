"""A real PostgreSQL for tests: started once per session, a fresh database per test, gone in the end."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg
import pytest

from elastrain.service.migrations import migrate

MISSING = (
    "PostgreSQL's server is not here: install it (Debian: `apt-get install postgresql`) "
    "or put its initdb and pg_ctl on PATH"
)
# parameters of a fixture: whoever takes it runs quickly on SQLite, and in the set `stores` on PostgreSQL
BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.stores)]
# what is lost when the machine loses power is of no interest here; what a crash of the server loses is
FAST = "-c fsync=off -c full_page_writes=off -c max_connections=300"


class Postgres:
    """One server on the loopback. `stop` and `start` are an outage; databases survive it."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder, self._binaries = folder, binaries
        self._numbers = count()
        self.port = free_port()
        # it refuses to run as root
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as:
            shutil.chown(folder, "postgres")
        self._run("initdb", "-A", "trust", "-U", "postgres", "--no-sync")
        self.start()

    def start(self) -> None:
        self._run("pg_ctl", "-o", f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 {FAST}")

    def stop(self) -> None:
        """As if it had crashed: every connection is cut."""
        self._run("pg_ctl", "-m", "immediate")

    def empty(self) -> str:
        """The URL of a new database without tables."""
        return self._made("template0")

    def fresh(self) -> str:
        """The URL of a new database with all tables. They are made once, and copied."""
        if not hasattr(self, "_template"):
            self._template = self.empty().rsplit("/", 1)[1]
            migrate(self._url(self._template))
        return self._made(self._template)

    def drop(self, url: str) -> None:
        self._sql(f"DROP DATABASE IF EXISTS {url.rsplit('/', 1)[1]} WITH (FORCE)")

    def _made(self, template: str) -> str:
        name = f"test_{next(self._numbers)}"
        self._sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"

    def _sql(self, statement: str) -> None:
        with psycopg.connect(
            f"postgresql://postgres@127.0.0.1:{self.port}/postgres", autocommit=True
        ) as connection:
            connection.execute(statement.encode())

    def _run(self, program: str, *arguments: str) -> None:
        verb = {"initdb": [], "pg_ctl": ["stop" if "-m" in arguments else "start", "-w"]}[program]
        log = [] if program == "initdb" else ["-l", str(self._folder / "log")]
        data = ["-D", str(self._folder / "data")]
        command = [*self._as, str(self._binaries / program), *verb, *data, *log, *arguments]
        ran = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@contextmanager
def running() -> Iterator[Postgres | None]:
    """None where its programs are missing."""
    found = binaries()
    if found is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="elastrain-pg-"))  # short: a socket's path has 107 bytes
    try:
        server = Postgres(folder, found)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def binaries() -> Path | None:
    """The newest of Debian's, which keeps them off PATH, or what PATH has."""
    newest = max(
        (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")),
        key=lambda folder: int(folder.parent.name),
        default=None,
    )
    on_path = shutil.which("pg_ctl")
    if newest is None and on_path is not None and Path(on_path).with_name("initdb").exists():
        return Path(on_path).parent
    return newest


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

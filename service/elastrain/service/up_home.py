"""HOME: the folder that holds everything one embedded elastrain keeps, and the lock that makes it one.

lock          held while an `up` runs; a killed one lets go of it
server.json   {url, pid, started}: where that `up` listens
token         the admin token, mode 0600
ports.json    {service, ray}: chosen at the first start, then kept
ray.json      the Ray head: {pid, started, mark, base, temp_dir}
ray-token     Ray's own token, mode 0600
elastrain.db  the store
objects/      object storage: packages, checkpoints, logs of jobs
logs/         of the service and of Ray
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class HomeTaken(Exception):
    """Another `up` runs on this HOME."""

    def __init__(self, home: Path, url: str | None) -> None:
        self.url = url
        where = f"at {url}" if url else "and is still starting"
        super().__init__(
            f"elastrain is already running {where} (home {home}). Stop it with ctrl-C where it runs, "
            "or set ELASTRAIN_HOME to another folder for a second one."
        )


class Home:
    """Reads and writes HOME. Makes the folder if it is not there, for its owner's eyes only."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.logs.mkdir(exist_ok=True)
        self.objects.mkdir(exist_ok=True)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def token_file(self) -> Path:
        """The admin token that the local command line uses."""
        return self.path / "token"

    @property
    def ray_token_file(self) -> Path:
        """Ray's token; made at the first call."""
        path = self.path / "ray-token"
        if not path.exists():
            _publish(path, secrets.token_hex(32))
        return path

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file of HOME; None if it is not there, or was cut short by a crash."""
        try:
            data = json.loads((self.path / name).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    def write(self, name: str, data: dict[str, Any]) -> None:
        """Replace a JSON file of HOME in one move."""
        _publish(self.path / name, json.dumps(data) + "\n")

    def forget(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold HOME. Raises HomeTaken if another process does; the system lets go when the holder dies."""
        with (self.path / "lock").open("a") as file:  # not inherited by Ray: Python's files never are
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HomeTaken(self.path, (self.read("server.json") or {}).get("url")) from None
            try:
                yield
            finally:
                self.forget("server.json")


def _publish(path: Path, text: str) -> None:
    """Write a file of mode 0600 that is there whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)

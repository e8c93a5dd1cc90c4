"""Once per release, from tests/: writes the store as that release leaves it, with rows, on both engines.

    python -m service.released.dump 0.1.0

test_upgrades.py takes every file in this folder up to the newest revision. A file is never written anew.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import databases
from elastrain.service.store import tokens, uploads
from world import ADMIN, SPEC, World

FOLDER = Path(__file__).parent


def fill(world: World) -> str:
    """One job of each kind that an upgrade may meet; -> the token of the driver that is running."""
    world.control.submit({**SPEC, "name": "ended"}, actor=ADMIN, idempotency_key="used-once")
    world.round()
    ended = next(iter(world.control.list_jobs(actor=ADMIN)["items"]))["id"]
    driver = world.driver(ended)
    driver.claim()
    driver.post({"kind": "progress", "status": "running", "step": 0, "total_steps": 100})
    driver.ends("succeeded")
    world.round()
    _, driver = world.running(name="running", labels={"team": "vision"}, workers={"min": 1, "max": 1})
    driver.post({"kind": "worker", "id": "w0", "group": "g0", "node": "n1", "pid": 7, "state": "active"})
    driver.post({"kind": "generation", "generation": 1, "step": 0, "workers": ["w0"], "cause": "start"})
    driver.post({"kind": "log", "worker": "w0", "offset": 0, "bytes": 6})
    for step in range(1, 6):
        driver.step(step, loss=1.0 / step, odd=float("nan"))
    driver.saves(5)
    world.submit(name="queued", workers={"min": 4, "max": 4})
    world.round()
    with world.store.write() as tx:
        uploads.add_package(tx, "a" * 64, "default", 10, 0.0)
        tokens.add(tx, "d" * 64, name="ci", role="member", project="default", at=0.0)
    return driver.token


def main(release: str) -> None:
    with tempfile.TemporaryDirectory() as folder, databases.running() as postgres:
        assert postgres is not None, databases.MISSING
        for engine, url in (("sqlite", None), ("postgresql", postgres.fresh())):
            world = World(Path(folder) / engine, database=url)
            token = fill(world)
            text = _sqlite(world) if url is None else _postgres(url)
            world.store.close()
            head = f"-- {json.dumps({'release': release, 'token': token})}\n"
            with (FOLDER / f"{release}.{engine}.sql").open("x") as file:
                file.write(head + text)


def _sqlite(world: World) -> str:
    with sqlite3.connect(world.settings.home / "elastrain.db") as connection:
        return "\n".join(connection.iterdump()) + "\n"


def _postgres(url: str) -> str:
    binaries = databases.binaries()
    assert binaries is not None
    command = [str(binaries / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", "--no-comments"]
    plain = url.replace("+psycopg", "")
    ran = subprocess.run([*command, plain], capture_output=True, text=True, check=True)
    kept = [
        line for line in ran.stdout.splitlines() if line and not re.match(r"(--|SET |\\|SELECT pg_)", line)
    ]
    return "\n".join(kept) + "\n"


if __name__ == "__main__":
    main(*sys.argv[1:])

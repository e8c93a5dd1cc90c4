"""A backup as docs/operations.md tells it, made while jobs run, brought back on another machine."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from databases import Postgres, binaries
from elastrain.service.migrations import migrate
from world import ADMIN, World

DOCS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
# as in the docs, where the paths are ~/.elastrain and backup
SQLITE = "import sqlite3, sys\nsource, copy = map(sqlite3.connect, sys.argv[1:])\nsource.backup(copy)\n"
DUMP = ("pg_dump", "--format=custom")
RESTORE = ("pg_restore", "--no-owner", "--exit-on-error")
MODEL = b"the parameters of step 5"


def test_the_commands_are_those_of_the_docs() -> None:
    text = DOCS.read_text()
    assert f"elastrain.db <<'EOF'\n{SQLITE}EOF\n" in text
    text = " ".join(text.split())
    assert " ".join(DUMP) in text and " ".join(RESTORE) in text


def saved(world: World, copy: Path, request: pytest.FixtureRequest) -> str:
    """Both commands, back and forth; -> the URL of the database that was brought back."""
    if world.store.is_sqlite:
        source, file = world.settings.home / "elastrain.db", copy / "elastrain.db"
        subprocess.run([sys.executable, "-", str(source), str(file)], input=SQLITE, text=True, check=True)
        return f"sqlite:///{file}"
    server: Postgres = request.getfixturevalue("postgres")
    url, bin_, dump = server.empty(), binaries(), copy / "elastrain.dump"
    assert bin_ is not None

    def plain(url: str) -> str:
        return url.replace("+psycopg", "")

    for program, *options in (
        [*DUMP, f"--file={dump}", plain(world.settings.database_url)],
        [*RESTORE, f"--dbname={plain(url)}", str(dump)],
    ):
        ran = subprocess.run([bin_ / program, *options], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    return url


def busy(world: World) -> tuple[str, str, Any]:
    """A job that trains and has saved step 5, and one that waits behind it."""
    training, driver = world.running(workers={"min": 2, "max": 2})
    waiting = world.submit(workers={"min": 2, "max": 2})
    for step in range(1, 6):
        driver.step(step)
    world.storage.put(f"jobs/{training}/checkpoints/{5:010d}/model.safetensors", MODEL)
    files = [{"name": "model.safetensors", "bytes": len(MODEL), "sha256": hashlib.sha256(MODEL).hexdigest()}]
    driver.post({"kind": "checkpoint", "step": 5, "state": "saved", "bytes": len(MODEL), "files": files})
    world.round()
    return training, waiting, driver


def test_a_service_that_is_brought_back_goes_on_with_every_job(
    world: World, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    training, waiting, driver = busy(world)
    token = world.control.auth.ensure_admin_token(world.settings.home / "token")
    copy = tmp_path_factory.mktemp("copy")
    url = saved(
        world, copy, request
    )  # the database first: what it names is in the objects that are copied next
    driver.step(6)
    driver.saves(6)
    shutil.copytree(world.settings.home / "objects", copy / "objects")
    driver.ends("failed", failed_by="user", message="after the backup")
    world.round()

    migrate(url)
    again = World(copy, database=url)
    again.ray.session_name = "session_2"  # another machine, another Ray
    again.clock.pass_s(3600.0)
    again.round()
    again.round()
    job = again.job(training)
    assert (job["status"], job["attempt"]) == ("starting", 2), job["message"]
    assert job["counters"]["retries_left"] == job["spec"]["retries"]
    assert again.status(waiting) == "queued"
    assert [p[0] for p in again.control.metrics(training, actor=ADMIN)["loss"]] == [1, 2, 3, 4, 5]
    size, content = again.control.checkpoint_file(training, 5, "model.safetensors", actor=ADMIN)
    assert (size, b"".join(content)) == (len(MODEL), MODEL)
    assert again.control.authenticate(token).role == "admin"
    second = again.driver(training)
    second.claim()
    second.post({"kind": "progress", "status": "running", "step": 5, "total_steps": 100})
    second.step(6)
    second.ends("succeeded")
    again.round()
    again.round()
    assert (again.status(training), again.status(waiting)) == ("succeeded", "starting")
    again.store.close()


def test_a_driver_that_trained_on_while_the_service_was_brought_back_is_taken_up_again(
    world: World, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    training, _, driver = busy(world)
    copy = tmp_path_factory.mktemp("copy")
    url = saved(world, copy, request)
    shutil.copytree(world.settings.home / "objects", copy / "objects")
    driver.step(6)  # told to the service that is lost now
    again = World(copy, database=url)
    again.ray.known = world.ray.known  # the same Ray
    again.clock.pass_s(60.0)
    again.round()
    driver.world = again
    driver.step(7)
    driver.ends("succeeded")
    again.round()
    assert again.status(training) == "succeeded"
    assert again.job(training)["attempt"] == 1
    again.store.close()


@pytest.fixture(autouse=True)
def _no_leftovers(database: Callable[[], str | None]) -> None:
    """The databases of this test are dropped with those of its world."""

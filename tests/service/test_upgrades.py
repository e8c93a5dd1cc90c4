"""A store of any released version, with a job on its way, is taken to the newest revision with every row."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from elastrain.service.migrations import _config, migrate, revisions
from elastrain.service.store import Store, plans
from elastrain.service.store.engine import open_engine
from elastrain.service.store.plans import PlanRow
from elastrain.service.store.schema import metadata
from world import ADMIN, SPEC, Driver, World

RELEASED = sorted((Path(__file__).parent / "released").glob("*.sql"))
PARAMS = [
    pytest.param(file, id=file.stem, marks=[pytest.mark.stores] if "postgresql" in file.name else [])
    for file in RELEASED
]


@pytest.fixture(params=PARAMS)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(URL of a database as that release left it, token of the driver that is running)"""
    text = request.param.read_text()
    token = json.loads(text.split("\n", 1)[0].removeprefix("-- "))["token"]
    if "postgresql" not in request.param.name:
        file = tmp_path / "released.db"
        connection = sqlite3.connect(file)
        connection.executescript(text)
        connection.close()
        yield f"sqlite:///{file}", token
        return
    server = request.getfixturevalue("postgres")
    url = server.empty()
    with psycopg.connect(url.replace("+psycopg", "")) as tx:
        tx.execute(text.encode())
    yield url, token
    server.drop(url)


def test_every_release_is_here_for_both_engines() -> None:
    releases = {file.stem.rsplit(".", 1)[0] for file in RELEASED}
    assert releases
    assert len(RELEASED) == 2 * len(releases)


def test_an_upgraded_store_has_the_tables_of_a_new_one(released: tuple[str, str]) -> None:
    url, _ = released
    migrate(url)
    current, newest = revisions(url)
    assert current == newest is not None
    store = Store(url)
    with store.read() as tx:
        assert compare_metadata(MigrationContext.configure(tx, opts={"compare_type": False}), metadata) == []
    store.close()


def test_an_upgrade_keeps_every_row(released: tuple[str, str]) -> None:
    url, _ = released
    before = rows(url)
    migrate(url)
    after = rows(url)
    assert sum(before.values()) > 40
    assert {table: after.get(table) for table in before} == before


def test_a_job_that_trains_during_an_upgrade_goes_on_and_one_that_waits_gets_its_turn(
    released: tuple[str, str], tmp_path: Path
) -> None:
    url, token = released
    migrate(url)
    world = World(tmp_path, database=url)
    world.clock.pass_s(100)
    jobs = {job["name"]: job for job in world.control.list_jobs(actor=ADMIN)["items"]}
    assert {name: job["status"] for name, job in jobs.items()} == {
        "ended": "succeeded",
        "running": "running",
        "queued": "queued",
    }
    asked_before = {**SPEC, "name": "ended"}
    again, created = world.control.submit(asked_before, actor=ADMIN, idempotency_key="used-once")
    assert (again["id"], created) == (jobs["ended"]["id"], False)
    running = jobs["running"]["id"]
    world.ray.set(submission(world, running), "RUNNING")
    driver = Driver.known(world, running, token, seq=11)
    driver.step(6, loss=0.1)
    loss = world.control.metrics(running, actor=ADMIN)["loss"]
    assert [point[0] for point in loss] == [1, 2, 3, 4, 5, 6]
    driver.writes_outcome("succeeded")
    world.ray.set(submission(world, running), "SUCCEEDED")
    world.ray.cluster[0].resources["CPU"] = 8
    world.round()
    world.round(10)
    assert world.status(running) == "succeeded"
    assert world.status(jobs["queued"]["id"]) == "starting"
    world.store.close()


def test_a_plan_of_the_version_before_is_no_trouble_and_the_next_round_makes_another(
    empty: str, tmp_path: Path
) -> None:
    """It named the first in the queue in a sentence, and not by its id."""
    to_revision(empty, "0005")
    sentence = "j-1 (large), which needs at least 2 workers"
    with closing(Store(empty)) as store, store.write() as tx:
        words = "INSERT INTO plans (name, version, at, queue, first) VALUES ('queue', 7, 1.0, '[]', '%s')"
        tx.exec_driver_sql(words % sentence)
    migrate(empty)
    world = World(tmp_path, database=empty)
    with world.store.read() as tx:
        assert plans.read(tx) == PlanRow(7, 1.0, [], None)
    world.running(workers={"min": 2, "max": 2})
    large = world.submit(name="large", workers={"min": 2, "max": 2})
    small = world.submit(name="small", workers={"min": 1, "max": 1})
    world.round()
    with world.store.read() as tx:
        assert plans.read(tx).first == (large, f"{large} (large)", "at least 2 workers with 1 CPU each")
    assert world.job(small)["queue"]["position"] == 2
    world.store.close()


def to_revision(url: str, revision: str) -> None:
    """As a version between two releases left it."""
    config = _config()
    engine = open_engine(url)
    with engine.connect() as connection:
        config.attributes["connection"] = connection.execution_options(elastrain_write=True)
        command.upgrade(config, revision)
    engine.dispose()


def submission(world: World, job: str) -> str:
    from elastrain.service.store import attempts

    with world.store.read() as tx:
        return attempts.of_job(tx, job)[-1].submission_id


def rows(url: str) -> dict[str, int]:
    """{table: rows}"""
    store = Store(url)
    with store.read() as tx:
        found = {
            name: int(tx.exec_driver_sql(f'SELECT count(*) FROM "{name}"').scalar_one())
            for name in inspect(tx).get_table_names()
        }
    store.close()
    return found

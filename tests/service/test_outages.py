"""The database or the object storage is away: no job fails for that, and the log says so once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from sqlalchemy.exc import OperationalError

from elastrain.service import reconciler
from elastrain.service.errors import Unavailable
from elastrain.trainers.storage import Storage, StorageError
from world import World

Outage = Callable[[], AbstractContextManager[None]]
MINUTE_S = 60.0


@pytest.fixture
def outage(world: World, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """A PostgreSQL that is really stopped, and started again at the end; a SQLite that cannot be opened."""
    postgres = None if world.store.is_sqlite else request.getfixturevalue("postgres")

    def refuse() -> None:
        raise OperationalError("SELECT 1", {}, Exception("unable to open database file"))

    @contextmanager
    def gone() -> Iterator[None]:
        if postgres is None:
            with monkeypatch.context() as patch:
                patch.setattr(world.store._engine, "connect", refuse)
                yield
            return
        postgres.stop()
        try:
            yield
        finally:
            postgres.start()

    return gone


@contextmanager
def running(world: World) -> Iterator[Callable[[int], None]]:
    """The reconciler in its thread; the test waits for a number of its rounds, whether they fail or not."""
    stop, rounds, real = threading.Event(), threading.Semaphore(0), world.reconciler.round

    def counted() -> None:
        try:
            real()
        finally:
            rounds.release()

    def wait(count: int) -> None:
        while rounds.acquire(blocking=False):
            pass
        for _ in range(count):
            assert rounds.acquire(timeout=60)

    world.reconciler.round = counted  # type: ignore[method-assign]
    thread = threading.Thread(target=world.reconciler.run, args=(stop,))
    thread.start()
    try:
        yield wait
    finally:
        stop.set()
        thread.join()


def lines(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(about)]


def test_a_database_that_is_gone_for_a_minute_costs_nothing_and_is_told_of_once(
    world: World, outage: Outage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(reconciler, "ROUND_S", 0.01)
    trained, driver = world.running(workers={"min": 1, "max": 1})
    waiting = world.submit(workers={"min": 1, "max": 1})
    with running(world) as rounds:
        rounds(2)
        with outage():
            rounds(20)
            world.clock.pass_s(MINUTE_S)
            for ask in (lambda: driver.step(1), lambda: world.job(trained), lambda: world.submit()):
                with pytest.raises(Unavailable, match="The database does not answer"):
                    ask()
        rounds(3)
        driver.step(1)
        driver.ends("succeeded")
        rounds(3)
    said = lines(caplog, "the database")
    assert [line.split(":")[0] for line in said] == ["the database", "the database"]
    assert "jobs stay as they are" in said[0] and said[1].endswith("well again")
    assert lines(caplog, "the reconciler") == lines(caplog, "this is how") == []
    assert (world.status(trained), world.status(waiting)) == ("succeeded", "starting")
    assert world.job(trained)["counters"]["attempts"] == 1
    assert len(world.ray.launches) == 2


def test_a_driver_is_not_blamed_for_the_time_in_which_nobody_could_hear_it(
    world: World, outage: Outage
) -> None:
    unclaimed = world.submit(workers={"min": 1, "max": 1})
    world.round()
    overdue, _ = world.running(workers={"min": 1, "max": 1})
    world.cancel(overdue)
    with outage():
        with pytest.raises(Unavailable):
            world.round()
        world.clock.pass_s(10 * MINUTE_S)
    world.round()
    world.round()
    assert world.ray.stops == []
    for _ in range(20):
        world.round(14)
    assert len(set(world.ray.stops)) >= 2  # now it is their own fault
    assert {unclaimed, overdue} == {id.split("-", 1)[1].rsplit("-", 1)[0] for id in world.ray.stops[:2]}


class Away:
    """The storage, with a trouble in front of it."""

    def __init__(self, storage: Storage) -> None:
        self.storage, self.kind, self.asked = storage, "", 0

    def __getattr__(self, verb: str) -> Callable[..., object]:
        def act(*args: object, **kwargs: object) -> object:
            self.asked += 1
            if self.kind:
                raise StorageError(self.kind, f"{args[0]} after {self.asked} tries: 503 Slow Down")
            return getattr(self.storage, verb)(*args, **kwargs)

        return act


@pytest.mark.parametrize("kind", ["unavailable", "denied"])
def test_outcomes_that_cannot_be_read_are_waited_for_and_the_trouble_is_told_of_once(
    world: World, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    away = world.storage = Away(world.storage)  # type: ignore[assignment]
    world.restart()
    world.ray.cluster[0].resources["CPU"] = 8
    crew = [world.running(workers={"min": 1, "max": 1}) for _ in range(6)]
    for number, (_, driver) in enumerate(crew):
        driver.writes_outcome(
            "succeeded" if number % 2 else "failed", failed_by=None if number % 2 else "user"
        )
        driver.exits("SUCCEEDED")
    away.kind = kind
    for _ in range(15):
        asked = away.asked
        world.round()
        assert away.asked - asked <= 1  # not once per job
    assert {world.status(id) for id, _ in crew} == {"running"}
    assert len(lines(caplog, "the object storage")) == 1
    assert "stay as they are" in lines(caplog, "the object storage")[0]
    away.kind = ""
    world.round()
    assert [world.status(id) for id, _ in crew] == ["failed", "succeeded"] * 3
    assert {world.job(id)["counters"]["attempts"] for id, _ in crew} == {1}


def test_while_the_storage_is_away_other_jobs_start_and_stop_as_ever(world: World) -> None:
    away = world.storage = Away(world.storage)  # type: ignore[assignment]
    world.restart()
    stuck, driver = world.running(workers={"min": 1, "max": 1})
    driver.exits("FAILED")
    away.kind = "unavailable"
    world.round()
    other, _ = world.running(workers={"min": 1, "max": 1})
    assert (world.status(stuck), world.status(other)) == ("running", "running")

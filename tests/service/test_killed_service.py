"""kill -9 of the service at every named point of its rounds, and inside its transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from elastrain.service import points
from elastrain.service.decide import SWEEP_S
from elastrain.service.outage import SILENT_S
from elastrain.service.points import POINTS
from elastrain.service.ray_jobs import RayNode
from elastrain.service.store import Store, attempts, installation, jobs
from world import ADMIN, World

Database = Callable[[], str | None]
INSIDE = "inside a transaction"
EFFECT = "!"  # the mark of what outlives the service


class Killed(BaseException):
    """The process is gone: nothing may catch it."""


@dataclass
class Watch:
    """Notes what a service does, and kills it when the `kill_at`-th point is reached."""

    world: World
    patch: pytest.MonkeyPatch
    kill_at: int = 0

    def __post_init__(self) -> None:
        self.trace: list[str] = []
        self.reached: list[str] = []
        self.patch.setattr(points, "watcher", self._point)
        for target, names in (
            (attempts, ("open_new", "change", "acknowledge")),
            (jobs, ("move", "change")),
            (installation, ("write",)),
        ):
            for name in names:
                self.patch.setattr(target, name, self._between(getattr(target, name)))
        for target, names in ((self.world.ray, ("submit", "stop")), (self.world.storage, ("get", "put"))):
            for name in names:
                self.patch.setattr(target, name, self._noted(name, getattr(target, name)))
        self.patch.setattr(Store, "write", self._committed(Store.write))

    def _point(self, name: str) -> None:
        self.trace.append(name)
        self.reached.append(name)
        if len(self.reached) == self.kill_at:
            raise Killed(name)

    def _between(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """What the call wrote is not committed yet."""

        def called(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            self._point(INSIDE)
            return result

        return called

    def _noted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.trace.append(EFFECT + name)
            return real(*args, **kwargs)

        return called

    def _committed(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def write(store: Store) -> Iterator[Any]:
            with real(store) as tx:
                yield tx
            self.trace.append(EFFECT + "commit")

        return write


# -- what happened before; the service is killed in the rounds after it


def submitted(world: World) -> str:
    return world.submit()


def driver_died(world: World) -> str:
    id, driver = world.running()
    driver.exits("FAILED", "killed by signal 9")
    return id


def finished_unseen(world: World) -> str:
    id, driver = world.running()
    driver.writes_outcome("succeeded")
    driver.exits()
    return id


def finished_while_ray_is_away(world: World) -> str:
    id, driver = world.running()
    driver.writes_outcome("succeeded")
    driver.exits()
    world.ray.trouble = "the connection was refused"
    return id


def cancel_overdue(world: World) -> str:
    id, _ = world.running()
    world.cancel(id)
    world.clock.pass_s(world.settings.cancel_grace_s)
    return id


def overtime(world: World) -> str:
    id = world.submit(timeout_s=100)
    world.round()
    world.clock.pass_s(101)
    return id


def paused_before_the_claim(world: World) -> str:
    id = world.submit()
    world.round()
    world.ask("pause", id)
    return id


def cancelled_between_two_attempts(world: World) -> str:
    id, driver = world.running()
    driver.exits("FAILED", "killed by signal 9")
    world.round()
    driver = world.driver(id)
    driver.claim()
    driver.exits("FAILED", "killed by signal 9")  # after a second loss it waits before it goes on
    world.round()
    world.cancel(id)
    return id


def submitted_and_killed_before_that_was_written_down(world: World) -> str:
    id = world.submit()
    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(world, patch)
        patch.setattr(points, "watcher", lambda name: _die(name == "ray has the driver"))
        with pytest.raises(Killed):
            world.round()
        assert watch.trace
    world.restart()
    return id


def ray_full(world: World) -> str:
    id = world.submit()
    world.ray.full = True
    return id


def stray(world: World) -> str:
    id, driver = world.running()
    installed = driver.launch.submission_id.split("-", 1)[0]
    world.ray.set(f"{installed}-j-0000000000-7", "RUNNING")
    return id


def head_came_back_empty(world: World) -> str:
    id, _ = world.running()
    world.ray.begin_anew("session_2")
    return id


def given_up_by_an_admin(world: World) -> str:
    id, _ = world.running()
    world.ray.trouble = "the connection was refused"
    world.control.cancel(id, actor=ADMIN, force=True)
    return id


def search_overdue(world: World) -> str:
    id, driver = world.running()
    world.cancel(id)
    driver.exits("FAILED", "killed by signal 9")
    world.round()
    world.ray.set(world.ray.searches[0].submission_id, "RUNNING")
    world.ray.printed.clear()
    world.clock.pass_s(SWEEP_S)
    return id


def not_heard_of_while_ray_is_away(world: World) -> str:
    id, _ = world.running()
    world.ray.trouble = "the connection was refused"
    world.round()
    world.clock.pass_s(SILENT_S)
    return id


def died_with_a_spool(world: World) -> str:
    id, driver = world.running()
    for step in (1, 2):
        driver.spools({"kind": "metric", "step": step, "values": {"loss": 1.0}})
        driver.spools({"kind": "event", "type": "step.skipped", "message": f"{step}", "data": {}})
    driver.exits("FAILED", "killed by signal 9")
    return id


def moved_to_another_address(world: World) -> str:
    id, _ = world.running()
    world.settings = replace(world.settings, driver_url="http://127.0.0.1:9999")
    world.restart()
    return id


def who_stood_before_it_is_gone(world: World) -> str:
    """It waits on, for a reason that is said in other words."""
    world.ray.cluster = [RayNode("n1", True, {"CPU": 2.0}, {"CPU": 2.0})]  # others use it all
    first, id = world.submit(), world.submit()
    for _ in range(3):
        world.round(15)
    world.cancel(first)
    return id


def _die(now: bool) -> None:
    if now:
        raise Killed


# story, where the job ends up, at which attempt, with how many drivers alive
STORIES = [
    (submitted, "starting", 1, 1),
    (driver_died, "starting", 2, 1),
    (finished_unseen, "succeeded", 1, 0),
    (finished_while_ray_is_away, "succeeded", 1, 0),
    (cancel_overdue, "cancelled", 1, 0),
    (overtime, "failed", 1, 0),
    (paused_before_the_claim, "paused", 1, 0),
    (cancelled_between_two_attempts, "cancelled", 2, 0),
    (submitted_and_killed_before_that_was_written_down, "starting", 1, 1),
    (ray_full, "starting", 1, 1),
    (stray, "running", 1, 1),
    (head_came_back_empty, "starting", 2, 1),
    (given_up_by_an_admin, "cancelled", 1, 0),
    (search_overdue, "cancelled", 1, 0),
    (died_with_a_spool, "starting", 2, 1),
    (moved_to_another_address, "running", 1, 1),
    (not_heard_of_while_ray_is_away, "running", 1, 1),
    (who_stood_before_it_is_gone, "queued", 0, 0),
]


def lived(world: World, story: Callable[[World], str], kill_at: int = 0) -> tuple[str, Watch]:
    """The story, and the rounds after it: until the service is killed, if it is."""
    id = story(world)
    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(world, patch, kill_at)
        try:
            for _ in range(4):
                world.round()
        except Killed:
            pass
    return id, watch


def told(world: World, id: str) -> list[str]:
    """What users see of the job's life. Why it waited is said anew by whoever asks."""
    quiet = ("job.waiting", "job.reason")
    return [event["type"] for event in world.events(id) if event["type"] not in quiet]


# most of them take their time: in the quick set are the three that nearly every job meets
QUICK = (submitted, driver_died, finished_unseen)


@pytest.mark.parametrize(
    ("story", "status", "attempt", "alive"),
    [
        pytest.param(*row, id=row[0].__name__, marks=[] if row[0] in QUICK else pytest.mark.stores)
        for row in STORIES
    ],
)
def test_a_service_killed_at_any_point_of_its_rounds_loses_and_doubles_nothing(
    story: Callable[[World], str], status: str, attempt: int, alive: int, tmp_path: Path, database: Database
) -> None:
    expected: list[str] | None = None
    for kill_at in count():  # 0: never
        world = World(tmp_path / str(kill_at), database=database())
        id, watch = lived(world, story, kill_at)
        world.ray.trouble, world.ray.full = None, False
        world.restart()
        for _ in range(5):
            world.round(15)
        where = f"killed at point {kill_at}, {watch.reached[-1]}"
        job, known = world.job(id), world.ray.known.values()
        expected = expected or told(world, id)
        assert (job["status"], job["attempt"]) == (status, attempt), where
        assert told(world, id) == expected, where
        launched = [launch.submission_id for launch in world.ray.launches]
        assert launched == [f"{launched[0].rsplit('-', 1)[0]}-{n}" for n in range(1, attempt + 1)], where
        assert sum(one.status == "RUNNING" for one in known) == alive, where
        world.store.close()
        if kill_at > len(watch.reached):
            break
    assert kill_at > 5


def test_every_point_is_reached_and_between_two_acts_there_is_one(tmp_path: Path) -> None:
    reached = set[str]()
    for story, *_ in STORIES:
        world = World(tmp_path / story.__name__)
        _, watch = lived(world, story)
        world.store.close()
        reached |= set(watch.reached)
        acts = [(one, other) for one, other in pairwise(watch.trace) if {one[0], other[0]} == {EFFECT}]
        assert acts == [], f"{story.__name__}: name a point between them in points.py, and reach it"
        assert any(entry[0] == EFFECT for entry in watch.trace)
    assert reached - {INSIDE} == set(POINTS), "a point needs a story above in which it is reached"

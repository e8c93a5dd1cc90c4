"""kill -9 of the service at every call of a round to Ray and to object storage, and inside transactions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastrain.service.store import attempts, installation, jobs
from world import World


class Killed(BaseException):
    """The process is gone: nothing may catch it."""


class Countdown:
    """Kills at the n-th point that is reached: before a call, or just after it had its effect."""

    def __init__(self, patch: pytest.MonkeyPatch, world: World) -> None:
        self.left = 0
        self.reached: list[str] = []
        targets: list[tuple[Any, tuple[str, ...]]] = [
            (world.ray, ("submit", "stop", "jobs", "nodes")),
            (world.storage, ("get",)),
            (attempts, ("open_new", "change")),
            (jobs, ("move", "change")),
            (installation, ("write",)),
        ]
        for target, names in targets:
            for name in names:
                patch.setattr(target, name, self._watched(name, getattr(target, name)))

    def _point(self, name: str) -> None:
        self.reached.append(name)
        self.left -= 1
        if self.left == 0:
            raise Killed(name)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._point(f"before {name}")
            result = real(*args, **kwargs)
            self._point(f"after {name}")
            return result

        return watched


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


def cancel_overdue(world: World) -> str:
    id, _ = world.running()
    world.cancel(id)
    world.clock.pass_s(world.settings.cancel_grace_s)
    return id


# what happened before, where the job ends up, at which attempt, with how many drivers alive
STORIES = [
    (submitted, "starting", 1, 1),
    (driver_died, "starting", 2, 1),
    (finished_unseen, "succeeded", 1, 0),
    (cancel_overdue, "cancelled", 1, 0),
]


@pytest.mark.parametrize(
    ("story", "status", "attempt", "alive"), STORIES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_service_killed_at_any_point_of_its_rounds_loses_and_doubles_nothing(
    story: Callable[[World], str],
    status: str,
    attempt: int,
    alive: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number, points = 0, 1
    while number < points:
        number += 1
        world = World(tmp_path / str(number))
        id = story(world)
        with monkeypatch.context() as patch:
            countdown = Countdown(patch, world)
            countdown.left = number if number > 1 else -1  # the first time only counts
            try:
                for _ in range(3):
                    world.round()
            except Killed:
                pass
        points = max(points, len(countdown.reached))
        where = f"killed at point {number}, {countdown.reached[-1]}"
        world.restart()
        for _ in range(3):
            world.round(15)
        job = world.job(id)
        assert (job["status"], job["attempt"]) == (status, attempt), where
        launched = [launch.submission_id for launch in world.ray.launches]
        assert launched == [f"{launched[0].rsplit('-', 1)[0]}-{n}" for n in range(1, attempt + 1)], where
        assert sum(known.status == "RUNNING" for known in world.ray.known.values()) == alive, where
        world.store.close()
    assert points > 10

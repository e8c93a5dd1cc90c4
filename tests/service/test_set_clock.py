"""The clock of the machine was set while jobs ran: nothing ended early, and nothing waited for hours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastrain.service.pace import Pace
from elastrain.service.set_clock import Jumps
from world import FakeClock, World

HOUR_S = 3600.0
Set = Callable[[float], None]


@pytest.fixture(params=["while the service runs", "while it is down"])
def set_clock(world: World, request: pytest.FixtureRequest) -> Set:
    """Sets the clock by so many seconds, as the service finds it."""

    def by(seconds: float) -> None:
        world.round()  # it has written down that it lives
        world.clock.pass_s(seconds)
        if request.param == "while it is down":
            world.restart()
            return
        moved = [seconds]
        world.reconciler._set_clock._jumps = lambda: moved.pop() if moved else 0.0

    return by


def test_the_clock_was_set_back_while_a_job_was_cancelled_and_its_driver_is_stopped_in_time(
    world: World, set_clock: Set
) -> None:
    id, _ = world.running()
    world.cancel(id)
    set_clock(-HOUR_S)
    for _ in range(5):
        world.round(10)
    assert world.ray.stops, "the grace time of 30 s is over, whatever the clock says"
    world.round()
    world.round()
    assert world.status(id) == "cancelled"


def test_the_clock_was_set_back_during_a_search_and_the_search_is_taken_up(
    world: World, set_clock: Set
) -> None:
    world.ray.finds = ["nothing that could be read"]
    id, driver = world.running()
    world.cancel(id)
    driver.exits("FAILED")
    world.round()
    world.round()  # the first search failed, and the next one is due in 2 s
    set_clock(-HOUR_S)
    for _ in range(10):
        world.round()
    assert world.status(id) == "cancelled"


def test_the_clock_was_set_back_and_a_lost_attempt_is_followed_by_another(
    world: World, set_clock: Set
) -> None:
    id, driver = world.running()
    driver.exits("FAILED")
    set_clock(-HOUR_S)
    for _ in range(20):
        world.round()
    assert world.job(id)["attempt"] == 2 and len(world.ray.launches) == 2


def test_the_clock_was_set_back_and_a_timeout_counts_on(world: World, set_clock: Set) -> None:
    id, _ = world.running(timeout_s=100)
    world.round(50)
    set_clock(-HOUR_S)
    world.round()
    assert world.status(id) == "running"
    world.round(60)
    assert (world.status(id), world.job(id)["reason"]) == ("cancelling", "timeout")


def test_the_clock_was_set_forward_and_no_job_has_run_out_of_time(world: World) -> None:
    id, _ = world.running(timeout_s=100)
    unclaimed = world.submit(workers={"min": 1, "max": 1})
    world.round()
    assert world.status(unclaimed) in ("queued", "starting")
    moved = [HOUR_S]
    world.reconciler._set_clock._jumps = lambda: moved.pop() if moved else 0.0
    world.clock.pass_s(HOUR_S)
    for _ in range(3):
        world.round()
    assert world.status(id) == "running" and world.ray.stops == []
    world.round(110)
    assert world.job(id)["reason"] == "timeout"


def test_the_service_that_finds_itself_behind_moves_nothing_twice(world: World) -> None:
    id, _ = world.running(timeout_s=100)
    world.round(20)
    world.clock.pass_s(-HOUR_S)
    for _ in range(3):
        world.restart()
        world.round()
    world.round(60)
    assert world.status(id) == "running"
    world.round(30)
    assert world.job(id)["reason"] == "timeout"


def test_what_is_seen_of_nodes_is_new_after_the_clock_was_set_back(world: World, set_clock: Set) -> None:
    waiting = world.submit(workers={"min": 4, "max": 4})
    world.round()
    assert world.status(waiting) == "queued"
    set_clock(-HOUR_S)
    world.ray.cluster[0].resources["CPU"] = 8
    world.round()
    assert world.status(waiting) == "starting"


def test_what_is_over_keeps_its_times(world: World, set_clock: Set) -> None:
    id, driver = world.running()
    driver.ends("succeeded")
    world.round()
    before = world.job(id)
    set_clock(-HOUR_S)
    world.round()
    assert world.job(id) == before


def test_only_what_nobody_can_call_drift_is_a_jump() -> None:
    wall, steady = [1000.0], [50.0]
    jumps = Jumps(lambda: wall[0], lambda: steady[0])
    for after, moved in ((1.0, 0.0), (3600.0, 0.0)):
        steady[0] += after
        wall[0] += after + moved
        assert jumps() == moved
    wall[0] += 0.4
    assert jumps() == 0.0
    wall[0] -= 7200
    assert jumps() == pytest.approx(-7200)
    assert jumps() == 0.0


def test_a_reading_between_which_somebody_else_computed_is_taken_again() -> None:
    readings = iter([50.0, 50.0, 60.0, 90.0, 90.0, 90.0])
    jumps = Jumps(lambda: 1000.0, lambda: next(readings))
    assert jumps._offset == 950.0
    assert jumps() == pytest.approx(-40.0)


def test_what_was_due_an_hour_ahead_is_due_now() -> None:
    clock = FakeClock()
    pace = Pace(clock, 10)
    assert pace.due("x") and not pace.due("x")
    clock.pass_s(-HOUR_S)
    assert pace.due("x") and not pace.due("x")

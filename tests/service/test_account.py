"""Where a job's time went, and what its own measurements advise."""

from __future__ import annotations

import pytest

from elastrain.service.account import account, advice
from elastrain.service.store.rows import TransitionRow
from world import World


def passed(status: str, at: float) -> TransitionRow:
    return TransitionRow(status, "", at, "service")


def test_the_time_of_each_status_that_a_job_has_left_is_added_up() -> None:
    history = [passed("queued", 10.0), passed("starting", 12.0), passed("running", 15.0)]
    assert account(history[:1]) == {}
    assert account(history) == {"queued_s": 2.0, "starting_s": 3.0}
    again = [*history, passed("failed", 16.0), passed("queued", 100.0), passed("running", 101.0)]
    assert account([*again, passed("paused", 103.0)]) == {
        "queued_s": 3.0,
        "starting_s": 3.0,
        "running_s": 3.0,
    }
    assert account([passed("queued", 10.0), passed("starting", 9.0)]) == {"queued_s": 0.0}, "other clocks"


def test_a_job_shows_where_its_time_went(world: World) -> None:
    id = world.submit()
    world.clock.pass_s(50)
    world.round()
    assert 50 <= world.job(id)["account"]["queued_s"] < 52
    driver = world.driver(id)
    driver.claim()
    driver.post({"kind": "progress", "status": "running", "step": 0, "total_steps": 100})
    world.clock.pass_s(30)
    driver.ends("succeeded")
    world.clock.pass_s(1000)
    assert 30 <= world.job(id)["account"]["running_s"] < 40


@pytest.mark.parametrize(
    ("measured", "most", "said"),
    [
        ({}, 4, ""),
        ({"2": [100.0, 5]}, 4, ""),
        ({"1": [100.0, 5], "2": [190.0, 5]}, 4, ""),
        ({"1": [100.0, 5], "2": [190.0, 5], "4": [150.0, 5]}, 4, "workers.max 2 is enough"),
        ({"1": [100.0, 5], "2": [110.0, 5]}, 4, "adds 10%"),
        ({"1": [100.0, 5], "2": [110.0, 5]}, 1, ""),
    ],
)
def test_measurements_advise_what_they_show(measured: dict[str, list[float]], most: int, said: str) -> None:
    told = advice(measured, most)
    assert (said in told[0]) if said else told == []

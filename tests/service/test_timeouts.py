"""`timeout_s`: what counts, how it ends, and what it loses against."""

from typing import Any

import pytest

from elastrain.service.errors import Conflict
from world import World


def test_a_job_that_runs_for_too_long_is_ended_like_a_cancelled_one_and_failed(world: World) -> None:
    id, driver = world.running(timeout_s=100)
    world.round(90)
    assert world.status(id) == "running"
    world.round(20)
    job = world.job(id)
    assert (job["status"], job["reason"], job["desired"]) == ("cancelling", "timeout", "cancel")
    driver.ends("cancelled")
    world.round()
    world.round()
    job = world.job(id)
    assert (job["status"], job["reason"], job["failed_by"]) == ("failed", "timeout", "user")
    assert "timeout_s is 100" in job["message"]
    assert world.events(id, "job.request_overtaken") == []


def test_a_driver_that_hangs_does_not_keep_a_job_from_timing_out(world: World) -> None:
    id, driver = world.running(timeout_s=100)
    world.round(110)
    world.round(world.settings.cancel_grace_s + 1)
    assert world.ray.stops == [driver.launch.submission_id]
    world.round()
    world.round()
    assert (world.status(id), world.job(id)["reason"]) == ("failed", "timeout")


def test_neither_waiting_nor_a_pause_counts_but_all_attempts_do(world: World) -> None:
    world.ray.trouble = "away"
    id = world.submit(timeout_s=100)
    world.round(1000)
    world.ray.trouble = None
    world.round()

    def runs_for(seconds: float) -> Any:
        driver = world.driver(id)
        driver.claim()
        driver.post({"kind": "progress", "status": "running", "step": 0})
        world.round(seconds)
        return driver

    driver = runs_for(60)
    world.ask("pause", id)
    driver.ends("paused")
    world.round(1000)
    world.ask("resume", id)
    world.round()
    world.round()
    driver = runs_for(30)
    driver.exits("FAILED")
    world.round()
    assert (world.status(id), world.job(id)["attempt"]) == ("starting", 3)
    runs_for(20)
    assert world.job(id)["reason"] == "timeout"


def test_a_success_that_was_recorded_before_the_timeout_holds(world: World) -> None:
    id, driver = world.running(timeout_s=100)
    driver.writes_outcome("succeeded")
    world.round(110)
    driver.exits()
    world.round()
    world.round()
    assert world.status(id) == "succeeded"


@pytest.mark.parametrize("said", ["2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_a_drivers_clock_decides_nothing(world: World, said: str) -> None:
    id = world.submit(timeout_s=100)
    world.round()
    driver = world.driver(id)
    driver.claim()
    world.round(40)  # this counts as well
    driver.post({"kind": "progress", "status": "running", "step": 0, "at": said})
    world.round(40)
    assert world.status(id) == "running"
    world.round(30)
    assert world.job(id)["reason"] == "timeout"
    times = [item["at"] for item in world.job(id)["transitions"]]
    assert times == sorted(times)


def test_a_retry_has_the_whole_time_again(world: World) -> None:
    id, driver = world.running(timeout_s=100)
    world.round(110)
    with pytest.raises(Conflict):
        world.ask("pause", id)
    driver.ends("cancelled")
    world.round()
    world.round()
    world.ask("retry", id)
    world.round()
    world.driver(id).claim()
    world.round(90)
    assert world.status(id) == "starting"
    world.round(20)
    assert world.job(id)["reason"] == "timeout"

"""Cancelling: never before the driver is gone, never over an outcome that was recorded first."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from elastrain.service.errors import Conflict, Forbidden
from world import World


def test_a_queued_job_that_is_cancelled_never_runs_even_after_a_restart(world: World) -> None:
    id = world.submit()
    assert world.cancel(id)["status"] == "cancelled"
    world.restart()
    world.round()
    assert (world.status(id), world.ray.launches) == ("cancelled", [])


def test_cancelled_is_written_only_after_the_driver_is_gone(world: World) -> None:
    id, driver = world.running()
    assert world.cancel(id)["status"] == "cancelling"
    assert driver.desired()["desired"] == "cancel"
    driver.post({"kind": "outcome", **driver.writes_outcome("cancelled")})
    world.round()
    assert world.status(id) == "cancelling"
    driver.exits()
    world.round()
    assert world.status(id) == "cancelled"
    assert world.cancel(id)["status"] == "cancelled"


def test_a_driver_that_ignores_the_request_is_stopped_after_the_grace_time(world: World) -> None:
    id, driver = world.running()
    world.cancel(id)
    world.ray.stubborn = True
    world.round(world.settings.cancel_grace_s / 2)
    assert world.ray.stops == []
    world.round(world.settings.cancel_grace_s)
    world.round()
    assert world.ray.stops == [driver.launch.submission_id]
    assert world.status(id) == "cancelling"
    world.ray.stubborn = False
    world.round(20)
    world.round()
    assert world.status(id) == "cancelling", "what it has left is searched for"
    world.round()
    assert (world.status(id), len(world.ray.stops)) == ("cancelled", 2)


def test_a_driver_that_had_not_started_yet_is_stopped_at_once_and_its_claim_refused(world: World) -> None:
    id = world.submit()
    world.round()
    driver = world.driver(id)
    world.cancel(id)
    with pytest.raises(Forbidden):
        driver.claim()
    world.round()
    world.round()
    assert (world.status(id), world.ray.stops) == ("cancelled", [driver.launch.submission_id])


@pytest.mark.parametrize("posted", [True, False])
def test_a_cancel_that_comes_after_the_success_changes_nothing(world: World, posted: bool) -> None:
    id, driver = world.running()
    body = driver.writes_outcome("succeeded")
    if posted:
        driver.post({"kind": "outcome", **body})
        with pytest.raises(Conflict):
            world.cancel(id)
    else:
        world.cancel(id)
        driver.exits()
        world.round()
        assert [item["data"]["asked"] for item in world.events(id, "job.request_overtaken")] == ["cancel"]
    assert world.status(id) == "succeeded"


def test_twenty_races_of_cancel_against_success_have_one_end_each(world: World) -> None:
    world.ray.cluster[0].resources["CPU"] = 40
    for _ in range(20):
        id, driver = world.running(workers={"min": 1, "max": 1})
        with ThreadPoolExecutor(2) as pool:
            cancelled = pool.submit(world.cancel, id)
            pool.submit(driver.ends, "succeeded").result()
        world.round()
        transitions = [item["status"] for item in world.job(id)["transitions"]]
        assert transitions[-1] == "succeeded" and len(set(transitions)) == len(transitions)
        if cancelled.exception() is not None:
            assert isinstance(cancelled.exception(), Conflict)


def test_a_driver_that_dies_while_cancelling_is_not_tried_again(world: World) -> None:
    id, driver = world.running()
    world.cancel(id)
    driver.exits("FAILED", "killed")
    world.round()
    world.round()
    assert (world.status(id), world.job(id)["attempt"]) == ("cancelled", 1)


def test_a_job_between_two_attempts_can_be_cancelled(world: World) -> None:
    id, _ = world.running()
    for _ in range(2):  # the second loss waits before the third attempt
        world.driver(id).exits("FAILED")
        world.round()
    assert world.job(id)["reason"] == "recovering"
    world.cancel(id)
    world.round()
    assert world.status(id) == "cancelled"


def test_cancel_beats_a_preemption_that_is_under_way(world: World) -> None:
    id, driver = world.running()
    world.control.preempt_all("the service stops")
    world.cancel(id)
    driver.ends("preempted")
    world.round()
    world.round()
    assert world.status(id) == "cancelled"


def test_while_ray_is_away_nothing_is_called_cancelled(world: World) -> None:
    id, driver = world.running()
    world.cancel(id)
    driver.post({"kind": "outcome", **driver.writes_outcome("cancelled")})
    world.ray.trouble = "the connection was refused"
    world.round(300)
    assert world.status(id) == "cancelling"

"""Ray's head restarted: one that knows nothing of before is another cluster, whatever its address."""

import pytest

from elastrain.service.outage import SILENT_S
from world import World

# what is decided here does not depend on the database; test_cancel.py goes the same ways on both
pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def test_a_job_whose_cluster_is_gone_goes_on_from_its_checkpoint_and_pays_no_retry(world: World) -> None:
    id, driver = world.running()
    driver.saves(50)
    world.ray.begin_anew("session_2")
    world.round()
    job = world.job(id)
    assert (job["status"], job["reason"], job["attempt"]) == ("starting", "recovering", 2)
    assert "Ray began anew" in job["message"]
    assert job["counters"]["retries_left"] == 3
    second = world.driver(id)
    second.claim()
    second.ends("succeeded")
    world.round()
    assert world.status(id) == "succeeded"


def test_a_head_that_is_restarted_again_and_again_fails_no_job(world: World) -> None:
    id, _ = world.running(retries=0)
    for number in range(2, 8):
        world.ray.begin_anew(f"session_{number}")
        world.round()
        world.driver(id).claim()
    assert (world.status(id), world.job(id)["attempt"]) == ("starting", 7)


def test_a_job_that_had_finished_before_its_cluster_went_has_succeeded(world: World) -> None:
    id, driver = world.running()
    driver.writes_outcome("succeeded")
    world.ray.begin_anew("session_2")
    world.round()
    assert (world.status(id), len(world.ray.launches)) == ("succeeded", 1)


def test_a_head_that_comes_back_with_what_it_knew_is_the_same_cluster(world: World) -> None:
    id, driver = world.running()
    world.ray.trouble = "the connection was refused"
    world.round(60)
    world.ray.trouble = None
    world.round()
    driver.step(7)
    assert (world.status(id), world.job(id)["attempt"]) == ("running", 1)


def test_a_job_that_is_not_heard_of_while_ray_is_away_says_that_nobody_knows(world: World) -> None:
    id, driver = world.running()
    other = world.submit(name="waits", workers={"min": 2, "max": 2})
    world.ray.trouble = "the connection was refused"
    world.round()
    assert (world.job(id)["reason"], world.job(other)["reason"]) == ("training", "ray_unreachable")
    world.round(SILENT_S + 1)
    job = world.job(id)
    assert (job["status"], job["reason"]) == ("running", "ray_unreachable")
    assert "the connection was refused" in job["message"] and "not known" in job["message"]
    for _ in range(5):
        world.round(60)
    assert len(world.events(id, "job.reason")) == 1, "it is said once"
    driver.post({"kind": "progress", "status": "running", "step": 9})
    assert (world.job(id)["reason"], world.job(id)["message"]) == ("training", None)
    driver.step(9)
    world.round()
    assert world.job(id)["reason"] == "training", "it was heard of just now"
    world.round(SILENT_S + 1)
    assert world.job(id)["reason"] == "ray_unreachable"
    world.ray.trouble = None
    world.round()
    assert (world.job(id)["reason"], world.job(id)["message"]) == ("training", None)


def test_a_cancel_that_cannot_be_seen_through_says_why_and_stays_a_cancel(world: World) -> None:
    id, _ = world.running()
    world.cancel(id)
    world.ray.trouble = "the connection was refused"
    world.round()
    world.round(SILENT_S + 1)
    job = world.job(id)
    assert (job["status"], job["reason"]) == ("cancelling", "cancel_requested")
    assert "Ray cannot be reached" in job["message"]
    world.ray.trouble = None
    world.round()
    assert world.job(id)["message"] is None


def test_a_job_that_was_about_to_start_waits_for_ray_and_starts(world: World) -> None:
    id = world.submit()
    world.ray.full = True
    world.round()
    world.ray.trouble = "the connection was refused"
    world.round()
    world.round(SILENT_S + 1)
    assert (world.status(id), world.job(id)["reason"]) == ("starting", "ray_unreachable")
    world.ray.trouble, world.ray.full = None, False
    world.round()
    assert (world.job(id)["reason"], len(world.ray.launches)) == ("workers_granted", 1)


def test_a_driver_that_the_new_cluster_shows_is_there(world: World) -> None:
    """It was submitted between the look at the old head and the start of the new one."""
    id, driver = world.running()
    world.ray.session_name = "session_2"
    world.round()
    assert (world.status(id), world.job(id)["attempt"]) == ("running", 1)
    driver.ends("succeeded")
    world.round()
    assert world.status(id) == "succeeded"


def test_a_driver_that_the_old_cluster_did_not_get_any_more_is_started_on_the_new_one(world: World) -> None:
    world.ray.full = True
    id = world.submit()
    world.round()
    world.ray.begin_anew("session_2")
    world.ray.full = False
    world.round()
    assert [launch.env["ELASTRAIN_ATTEMPT_NUMBER"] for launch in world.ray.launches] == ["1"]
    world.driver(id).claim()
    world.round()
    assert world.job(id)["attempt"] == 1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_driver_that_claimed_before_the_service_noted_its_submission_knows_its_cluster_too(
    world: World, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    id, submit = world.submit(), world.ray.submit

    def quick(launch: object) -> None:
        submit(launch)  # type: ignore[arg-type]
        if launch not in world.ray.launches:  # it looks at the cluster
            return
        world.driver(id).claim()
        if restarted:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.ray, "submit", quick)
        try:
            world.round()
        except KeyboardInterrupt:
            world.restart()
            world.round()
    world.ray.begin_anew("session_2")
    world.round()
    assert world.job(id)["attempt"] == 2
    assert "Ray began anew" in world.job(id)["message"]

"""A job's way through Ray, and what becomes of it when something dies on the way."""

import pytest

from elastrain.service.errors import Conflict, Gone
from elastrain.service.ray_jobs import RayNode
from world import ADMIN, World


def test_a_submitted_job_runs_and_succeeds(world: World) -> None:
    id, driver = world.running()
    job = world.job(id)
    assert (job["status"], job["reason"]) == ("running", "training")
    assert job["workers"] == {"min": 1, "max": 2, "target": 2, "active": 0}
    driver.ends("succeeded")
    assert world.status(id) == "succeeded"
    world.round()
    assert [item["status"] for item in world.job(id)["transitions"]] == [
        "queued",
        "starting",
        "running",
        "succeeded",
    ]
    assert world.control.open_attempts() == []


def test_ray_is_told_nothing_but_the_claim(world: World) -> None:
    id, driver = world.running(env={"CANARY": "sings"})
    launch = driver.launch
    assert set(launch.env) == {
        "ELASTRAIN_DRIVER_URL",
        "ELASTRAIN_JOB",
        "ELASTRAIN_ATTEMPT_NUMBER",
        "ELASTRAIN_CLAIM",
        "ELASTRAIN_ATTEMPT",
    }
    assert launch.submission_id.endswith(f"-{id}-1")
    assert "CANARY" not in repr(launch)


def test_while_ray_cannot_be_reached_the_job_stays_queued_and_says_so(world: World) -> None:
    world.ray.trouble = "the connection was refused"
    id = world.submit()
    world.round()
    job = world.job(id)
    assert (job["status"], job["reason"]) == ("queued", "ray_unreachable")
    assert "the connection was refused" in job["message"]
    assert job["queue"]["blocked_by"] == job["message"]
    ready = world.control.readyz()
    assert not ready["ready"] and not ready["checks"]["ray"]["ok"]
    world.ray.trouble = None
    world.round()
    assert world.status(id) == "starting"
    assert len(world.ray.launches) == 1


def test_a_driver_that_died_is_followed_by_a_second_attempt(world: World) -> None:
    id, driver = world.running()
    driver.exits("FAILED", "killed by signal 9")
    world.round()
    job = world.job(id)
    assert (job["status"], job["reason"], job["attempt"]) == ("starting", "recovering", 2)
    assert "signal 9" in job["message"]
    assert [item.env["ELASTRAIN_ATTEMPT_NUMBER"] for item in world.ray.launches] == ["1", "2"]
    assert job["counters"] == {"attempts": 2, "retries_left": 2, "workers_replaced": 0, "steps_skipped": 0}
    with pytest.raises(Gone):
        driver.post({"kind": "event", "type": "worker.joined", "message": "late"})


def test_attempts_without_progress_use_up_the_retries_and_a_checkpoint_refills_them(world: World) -> None:
    id, driver = world.running(retries=1)
    driver.exits("FAILED")
    world.round()
    second = world.driver(id)
    second.claim()
    second.saves(10)
    second.exits("FAILED")
    world.round()
    assert world.job(id)["counters"]["retries_left"] == 0
    third = world.driver(id)
    assert third.attempt == 3
    third.claim()
    third.exits("FAILED", "the node is gone")
    world.round(60)
    job = world.job(id)
    assert (job["status"], job["reason"], job["failed_by"]) == (
        "failed",
        "retries_exhausted",
        "infrastructure",
    )
    assert "the node is gone" in job["message"]


def test_an_outcome_in_storage_counts_though_nobody_posted_it(world: World) -> None:
    id, driver = world.running()
    driver.writes_outcome("failed", failed_by="user", message="NameError: nam")
    driver.exits("SUCCEEDED")
    world.round()
    job = world.job(id)
    assert (job["status"], job["failed_by"], job["message"]) == ("failed", "user", "NameError: nam")


def test_rays_own_status_decides_nothing(world: World) -> None:
    id, driver = world.running()
    driver.exits("SUCCEEDED")
    world.round()
    assert (world.status(id), world.job(id)["attempt"]) == ("starting", 2)


def test_a_finished_driver_is_noticed_although_ray_is_away(world: World) -> None:
    id, driver = world.running()
    driver.writes_outcome("succeeded")
    world.ray.trouble = "it did not answer in time"
    world.round()
    assert world.status(id) == "succeeded"


def test_a_running_job_keeps_running_while_ray_is_away(world: World) -> None:
    id, _ = world.running()
    world.ray.trouble = "it did not answer in time"
    for _ in range(5):
        world.round(60)
    assert (world.status(id), world.job(id)["attempt"]) == ("running", 1)


def test_a_head_that_comes_back_empty_is_noticed(world: World) -> None:
    id, _ = world.running()
    world.ray.known.clear()
    world.round()
    assert (world.status(id), world.job(id)["attempt"]) == ("starting", 2)


def test_a_driver_that_never_calls_is_given_up(world: World) -> None:
    id = world.submit()
    world.round()
    world.round(world.settings.claim_timeout_s + 1)
    assert world.ray.stops == [world.ray.launches[0].submission_id]
    world.round()
    job = world.job(id)
    assert (job["status"], job["reason"], job["attempt"]) == ("starting", "recovering", 2)
    assert "never called the service" in job["message"]


def test_a_restarted_service_sees_everything_and_starts_nothing_twice(world: World) -> None:
    id, driver = world.running()
    waiting = world.submit(name="waits", workers={"min": 2, "max": 2})
    world.round()
    driver.step(7, loss=0.5)
    world.restart()
    world.round()
    driver.step(8, loss=0.4)
    assert len(world.ray.launches) == 1
    assert [point[:2] for point in world.control.metrics(id, actor=ADMIN)["loss"]] == [[7, 0.5], [8, 0.4]]
    assert world.job(waiting)["reason"] == "no_capacity"
    driver.ends("succeeded")
    world.round()
    world.round()
    assert world.status(waiting) == "starting"


def test_a_stray_driver_is_stopped_and_other_installations_are_left_alone(world: World) -> None:
    _, driver = world.running()
    installation = driver.launch.submission_id.split("-")[0]
    stray, foreign = f"{installation}-j-0000000000-1", "zzzzzz-j-0000000000-1"
    world.ray.set(stray, "RUNNING")
    world.ray.set(foreign, "RUNNING")
    world.ray.set("raysubmit_abc", "RUNNING")
    world.round()
    assert world.ray.stops == [stray]


def test_a_job_starts_once_a_preempted_one_has_left(world: World) -> None:
    id, driver = world.running()
    assert world.control.preempt_all("the service stops") == [id]
    assert driver.desired()["desired"] == "preempt"
    assert world.status(id) == "pausing"
    driver.saves(40)
    driver.ends("preempted", step=40)
    job = world.job(id)
    assert (job["status"], job["reason"], job["desired"]) == ("queued", "preempted", "run")
    world.round()
    world.round()
    job = world.job(id)
    assert (job["status"], job["attempt"], job["counters"]["retries_left"]) == ("starting", 2, 3)


def test_while_the_service_drains_nothing_new_starts(world: World) -> None:
    world.reconciler.admitting = False
    id = world.submit()
    world.round()
    assert (world.status(id), world.ray.launches) == ("queued", [])


def test_an_attempt_that_gave_up_for_want_of_workers_waits_and_says_why(world: World) -> None:
    id, driver = world.running()
    driver.post({"kind": "progress", "status": "running", "reason": "waiting_for_workers", "step": 12})
    driver.ends("preempted", step=12, message="1 of at least 2 workers for 60 s")
    job = world.job(id)
    assert (job["status"], job["reason"]) == ("queued", "too_few_workers")
    world.round()
    assert world.status(id) == "queued"
    world.round(30)
    assert world.status(id) == "starting"


def test_a_driver_that_could_not_call_a_dead_service_is_not_blamed_for_it(world: World) -> None:
    id = world.submit()
    world.round()
    world.clock.pass_s(world.settings.claim_timeout_s * 2)
    world.restart()
    world.round()
    assert world.ray.stops == []
    world.driver(id).claim()
    assert world.job(id)["attempt"] == 1


def test_a_driver_that_ray_was_told_to_stop_behind_our_back_is_followed_by_another(world: World) -> None:
    id, driver = world.running()
    driver.ends("preempted", step=30, message="the driver was told to end (SIGTERM)")
    job = world.job(id)
    assert (job["status"], job["reason"]) == ("queued", "preempted") and "SIGTERM" in job["message"]
    world.round()
    world.round(30)
    assert (world.status(id), world.job(id)["attempt"]) == ("starting", 2)


def test_a_driver_that_ray_does_not_take_is_offered_again_and_nobody_else_is_told_that_ray_is_away(
    world: World,
) -> None:
    world.ray.full = True
    first, second = world.submit(), world.submit(workers={"min": 2, "max": 2})
    world.round()
    job = world.job(first)
    assert job["status"] == "starting" and "no available agent" in job["message"]
    assert world.job(second)["reason"] == "no_capacity"
    world.ray.full = False
    world.round()
    world.driver(first).claim()
    assert (len(world.ray.launches), world.job(first)["message"]) == (1, None)


def test_a_larger_range_of_workers_reaches_the_driver(world: World) -> None:
    id, driver = world.running(workers={"min": 1, "max": 1})
    version = driver.desired()["version"]
    world.control.patch(id, {"workers": {"min": 1, "max": 2}}, actor=ADMIN)
    world.round()
    desired = driver.desired()
    assert desired["workers"] == {"min": 1, "max": 2, "target": 2} and desired["version"] > version
    world.control.patch(id, {"workers": {"max": 1}}, actor=ADMIN)
    assert driver.desired()["workers"]["target"] == 1


def test_workers_that_the_cluster_lacks_are_granted_once_a_node_joins(world: World) -> None:
    _, driver = world.running(workers={"min": 1, "max": 4})
    assert driver.desired()["workers"]["target"] == 2
    world.ray.cluster.append(RayNode("n2", True, {"CPU": 1.0}, {}))
    world.round(10)
    assert driver.desired()["workers"]["target"] == 3


def test_an_ended_job_refuses_changes_and_says_what_is_possible(world: World) -> None:
    id, driver = world.running()
    driver.ends("succeeded")
    with pytest.raises(Conflict) as refused:
        world.control.patch(id, {"priority": 3}, actor=ADMIN)
    assert refused.value.extra["allowed_actions"] == ["clone", "delete"]
    assert world.control.patch(id, {"labels": {"keep": "yes"}}, actor=ADMIN)["labels"] == {"keep": "yes"}

"""Workers, drivers and the service are killed; the job does not mind."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from e2e.house import STEPS, House, Houses, Watched, active, digests, eventually, kill_pid
from mlflow_server import Mlflow

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Submit = Callable[..., Watched]


def test_a_killed_worker_costs_no_step_no_restart_and_no_bit(
    house: House, submit: Submit, undisturbed: dict[str, object]
) -> None:
    run = submit()
    before = eventually(lambda: (crew := active(run.job)) and len(crew) == 2 and crew)
    run.at_step(20)
    victim = sorted(before)[-1]
    kill_pid(before.pop(victim))
    job = run.ended()
    assert job.status == "succeeded"
    assert run.record.lost(STEPS) == 0
    assert [event["data"]["worker"] for event in run.record.of_type("worker.lost")] == [victim]
    after = {worker["id"]: worker["pid"] for worker in job.workers()}
    assert {name: after[name] for name in before} == before, "the survivor was restarted"
    assert job.data["counters"]["attempts"] == 1
    assert digests(job) == undisturbed


def test_a_killed_driver_is_followed_by_an_attempt_from_the_newest_checkpoint(
    house: House, submit: Submit, undisturbed: dict[str, object], mlflow: Mlflow
) -> None:
    run = submit(f"env={{MLFLOW_TRACKING_URI: '{mlflow.url}'}}").at_step(90)
    workers = list(active(run.job).values())
    kill_pid(house.driver(run.job).pid)
    job = run.ended()
    assert job.status == "succeeded", job.data["message"]
    assert job.data["counters"]["attempts"] == 2
    restored = run.record.of_type("checkpoint.restored")
    assert restored and restored[0]["data"]["step"] >= 80
    assert digests(job) == undisturbed
    assert not set(workers) & set(active(job).values()), "a worker of the first attempt outlived its driver"
    told = set(mlflow.steps("loss"))  # in one run, by both
    assert set(range(restored[0]["data"]["step"] + 1, STEPS + 1)) <= told and min(told) == 1
    assert mlflow.run["status"] == "FINISHED"


def test_a_killed_ray_head_is_started_again_and_the_job_goes_on_from_its_checkpoint(
    house: House, submit: Submit, undisturbed: dict[str, object]
) -> None:
    run = submit().at_step(60)
    kill_pid(json.loads((house.home / "ray.json").read_text())["pid"])
    job = run.ended(240)
    assert job.status == "succeeded", job.data["message"]
    assert job.data["counters"]["attempts"] == 2
    assert run.record.of_type("checkpoint.restored")[0]["data"]["step"] >= 40
    assert digests(job) == undisturbed
    assert "Ray ended" in house.server.said
    assert job.data["counters"]["retries_left"] == 3, "a lost cluster is no fault of the job"
    assert [event["data"]["reason"] for event in run.record.of_type("attempt.receipt")][:1] == [
        "cluster_lost"
    ]


def test_a_killed_service_misses_nothing_of_the_job_that_trained_on(
    houses: Houses, submit: Submit, undisturbed: dict[str, object]
) -> None:
    run = submit().at_step(40)
    driver = houses.now.driver(run.job)
    houses.now.kill()
    assert driver.is_running()
    house = houses.now  # the next `up`
    assert "found Ray running" in house.server.said
    job = run.ended()  # the follower found its way back by itself
    assert job.status == "succeeded"
    assert job.data["counters"]["attempts"] == 1
    assert run.record.lost(STEPS) == 0
    assert digests(job) == undisturbed

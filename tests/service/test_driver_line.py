"""The driver's line: who may claim, what counts once, who is told that it was superseded."""

from typing import Any

import pytest

from elastrain.service.errors import Forbidden, Invalid, Unauthenticated
from world import ADMIN, World


def test_the_same_nonce_gets_the_same_answer_and_another_one_is_refused(world: World) -> None:
    id, driver = world.running()
    token = driver.token
    assert driver.claim()["token"] == token
    with pytest.raises(Forbidden):
        driver.claim("another-driver-altogether")
    assert len(world.events(id, "security.claim_refused")) == 1
    assert driver.claim()["token"] == token


def test_facts_of_one_batch_build_on_each_other(world: World) -> None:
    id = world.submit()
    world.round()
    driver = world.driver(id)
    driver.claim()
    running = {"kind": "progress", "status": "running", "step": 1}
    driver.post(running, {**running, "step": 2, "reason": "waiting_for_workers"}, {**running, "step": 3})
    job = world.job(id)
    assert [item["status"] for item in job["transitions"]] == ["queued", "starting", "running"]
    assert (job["reason"], job["progress"]["step"]) == ("training", 3)
    assert len(world.events(id, "job.reason")) == 2


def test_a_claim_gives_what_an_attempt_needs_and_starts_it_once(world: World) -> None:
    id = world.submit(env={"GREETING": "hello"})
    world.round()
    answer = world.driver(id).claim()
    assert answer["spec"]["name"] == "digits" and answer["env"] == {"GREETING": "hello"}
    assert answer["storage_url"].startswith("file://") and answer["package"] is None
    assert answer["desired"]["desired"] == "run"
    assert answer["desired"]["workers"] == {"min": 1, "max": 2, "target": 2}
    world.driver(id).claim()
    assert len(world.events(id, "attempt.started")) == 1


@pytest.mark.parametrize("wrong", [{"code": "guess"}, {"attempt": 2}, {"job": "j-0000000000"}])
def test_a_wrong_claim_learns_nothing(world: World, wrong: dict[str, object]) -> None:
    id = world.submit()
    world.round()
    code = world.driver(id).launch.env["ELASTRAIN_CLAIM"]
    body = {"protocol": 1, "job": id, "attempt": 1, "code": code, "nonce": "n" * 16}
    with pytest.raises(Forbidden, match="no such attempt"):
        world.control.driver_claim({**body, **wrong})
    with pytest.raises(Invalid):
        world.control.driver_claim({**body, "protocol": 99})


def test_the_code_is_gone_from_the_store_once_it_was_used(world: World) -> None:
    id, driver = world.running()
    assert driver.token not in world.stored() and world.job(id)["name"] in world.stored()
    from elastrain.service.store import attempts

    with world.store.read() as tx:
        attempt = attempts.get(tx, id, 1)
    assert attempt is not None and attempt.code is None


def test_the_answer_to_an_outcome_has_the_version_that_it_led_to(world: World) -> None:
    id, driver = world.running()
    world.ask("pause", id)
    asked = driver.desired()["version"]
    answer = driver.post({"kind": "outcome", **driver.writes_outcome("paused")})
    assert answer["desired_version"] == driver.desired()["version"] > asked


def test_facts_posted_twice_count_once(world: World) -> None:
    id, driver = world.running()
    batch: list[dict[str, Any]] = [
        {"kind": "event", "type": "worker.joined", "message": "w0 joined", "data": {"worker": "w0"}},
        {"kind": "metric", "step": 1, "values": {"loss": 2.0}, "epoch_no": 0},
    ]
    first = driver.seq
    assert driver.post(*batch)["acked_seq"] == first + 1
    assert driver.post(*batch, first_seq=first)["acked_seq"] == first + 1
    third: dict[str, Any] = {"kind": "event", "type": "worker.left", "message": "w0 left"}
    driver.post(*batch, third, first_seq=first)
    assert [event["type"] for event in world.events(id, "worker")] == ["worker.joined", "worker.left"]
    assert len(world.control.metrics(id, actor=ADMIN)["loss"]) == 1


def test_a_fact_that_is_not_understood_does_not_hold_up_those_behind_it(world: World) -> None:
    id, driver = world.running()
    driver.post(
        {"kind": "telepathy"},
        {"kind": "metric", "step": "x", "values": {}},
        {"kind": "worker", "id": "../../etc/passwd", "state": "active"},
        {"kind": "event", "type": "job.succeeded", "message": "says the driver"},
        {"kind": "log", "worker": "w0", "offset": -5, "bytes": 10},
        {"kind": "worker", "id": "w1", "pid": "seven"},
        {"kind": "generation", "generation": 1, "workers": "w0"},
        {"kind": "worker", "id": "w0", "group": "g0", "node": "n1", "pid": 7, "rank": 0, "state": "active"},
    )
    assert [worker["id"] for worker in world.control.workers(id, actor=ADMIN)["items"]] == ["w0"]
    assert world.status(id) == "running"


def test_what_a_driver_says_about_an_attempt_after_its_outcome_changes_nothing(world: World) -> None:
    id, driver = world.running()
    outcome = {"kind": "outcome", "outcome": "succeeded", "step": 100}
    late = {"kind": "progress", "status": "running", "step": 99, "workers_active": 2}
    driver.post(outcome, late, {**outcome, "outcome": "failed", "failed_by": "user"})
    job = world.job(id)
    assert (job["status"], job["progress"]["step"], job["workers"]["active"]) == ("succeeded", 100, 0)
    assert len(world.events(id, "attempt.ended")) == 1


def test_a_token_that_was_never_given_is_refused(world: World) -> None:
    world.running()
    with pytest.raises(Unauthenticated):
        world.control.driver_desired("eld_guess")


def test_what_an_attempt_reports_is_shown(world: World) -> None:
    id, driver = world.running()
    driver.post(
        {
            "kind": "progress",
            "status": "running",
            "step": 30,
            "total_steps": 100,
            "epoch": 1,
            "samples_per_s": 512.5,
            "eta_s": 8.75,
            "steps_skipped": 1,
            "workers_replaced": 2,
            "workers_active": 2,
        },
        {
            "kind": "generation",
            "generation": 1,
            "step": 0,
            "workers": ["w0", "w1"],
            "cause": "start",
            "pause_ms": 21.5,
        },
        {
            "kind": "checkpoint",
            "step": 20,
            "state": "saved",
            "bytes": 99,
            "files": [],
            "metrics": {"loss": "NaN"},
        },
        {"kind": "checkpoint", "step": 10, "state": "saved", "bytes": 99, "files": []},
        {"kind": "checkpoint", "step": 10, "state": "deleted"},
    )
    job = world.job(id)
    assert job["progress"] == {
        "step": 30,
        "total_steps": 100,
        "epoch": 1,
        "eta_s": 8.75,
        "samples_per_s": 512.5,
    }
    assert (
        job["workers"]["active"],
        job["counters"]["steps_skipped"],
        job["counters"]["workers_replaced"],
    ) == (2, 1, 2)
    assert world.control.generations(id, actor=ADMIN)["items"][0]["workers"] == ["w0", "w1"]
    assert [item["step"] for item in world.control.checkpoints(id, actor=ADMIN)["items"]] == [20]


def test_a_running_job_that_lacks_workers_says_so_and_stays_running(world: World) -> None:
    id, driver = world.running()
    driver.post({"kind": "progress", "status": "running", "reason": "waiting_for_workers", "step": 3})
    assert (world.job(id)["status"], world.job(id)["reason"]) == ("running", "waiting_for_workers")
    driver.post({"kind": "progress", "status": "running", "reason": None, "step": 4})
    assert world.job(id)["reason"] == "training"


def test_logs_that_come_after_the_outcome_are_still_taken_before_the_stream_ends(world: World) -> None:
    id, driver = world.running()
    driver.post({"kind": "outcome", **driver.writes_outcome("succeeded")})
    assert world.control.feed(id, actor=ADMIN, after=0, kinds={"event", "log"})["end"] is None
    world.storage.put(f"jobs/{id}/logs/1/w0/{0:012d}", b"last words\n")
    driver.post({"kind": "log", "worker": "w0", "offset": 0, "bytes": 11})
    driver.exits()
    world.round()
    page = world.control.feed(id, actor=ADMIN, after=0, kinds={"event", "log"})
    assert page["end"]["status"] == "succeeded"
    assert [row["data"]["text"] for row in page["rows"] if row["kind"] == "log"] == ["last words\n"]

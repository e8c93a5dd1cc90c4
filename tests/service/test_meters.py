"""What Prometheus reads about jobs, the queue and the reconciler is what happened, each thing once."""

from __future__ import annotations

from typing import Any

import pytest

from elastrain.service.errors import Unavailable
from elastrain.service.meters import LONGEST_ROUND_S, TROUBLES
from elastrain.service.monitoring import StoreGauges
from world import World


def losses(*steps: int, epoch_no: int = 0) -> list[dict[str, Any]]:
    values = {"loss": 1.0}
    return [{"kind": "metric", "step": step, "values": values, "epoch_no": epoch_no} for step in steps]


def event(type_: str, **data: Any) -> dict[str, Any]:
    return {"kind": "event", "type": type_, "message": type_, "data": data}


def test_a_job_that_waited_a_minute_for_workers_is_one_wait_of_a_minute(world: World) -> None:
    _, first = world.running(workers={"min": 2, "max": 2})
    world.submit(workers={"min": 2, "max": 2})
    world.round(60.0)
    assert world.metric("elastrain_jobs", status="queued") == 1
    assert world.metric("elastrain_queue_jobs", reason="no_capacity") == 1
    assert 60.0 < (world.metric("elastrain_queue_oldest_wait_seconds") or 0.0) < 62.0
    first.ends("succeeded")
    world.round()
    world.round()
    assert world.metric("elastrain_jobs", status="queued") == 0
    assert world.metric("elastrain_queue_oldest_wait_seconds") == 0.0
    assert world.metric("elastrain_queue_wait_seconds_count") == 2
    assert 61.0 < (world.metric("elastrain_queue_wait_seconds_sum") or 0.0) < 66.0


def test_time_of_jobs_goes_to_what_they_did_with_it(world: World) -> None:
    id, driver = world.running()
    for _ in range(3):
        world.round(5.0)
    driver.post({"kind": "progress", "status": "running", "reason": "waiting_for_workers", "step": 1})
    world.round(7.0)
    seconds = {p: world.metric("elastrain_job_seconds_total", phase=p) for p in ("training", "waiting")}
    assert seconds["training"] == pytest.approx(15.0, abs=0.5)
    assert seconds["waiting"] == pytest.approx(7.0, abs=0.5)
    driver.exits("FAILED")
    world.round(1.0)
    world.round(1.0)
    assert world.status(id) == "starting"
    assert (world.metric("elastrain_job_seconds_total", phase="recovering") or 0.0) > 0.5


def test_an_hour_in_which_nobody_led_is_no_hour_of_training(world: World) -> None:
    world.running()
    world.round(1.0)
    before = world.metric("elastrain_job_seconds_total", phase="training") or 0.0
    world.round(3600.0)
    after = world.metric("elastrain_job_seconds_total", phase="training") or 0.0
    assert after - before <= LONGEST_ROUND_S


def test_what_a_driver_repeats_is_counted_once(world: World) -> None:
    _, driver = world.running()
    facts = [
        *losses(1, 2, 3),
        {"kind": "generation", "generation": 1, "pause_ms": 1500.0, "step": 0, "workers": ["w0"]},
        {"kind": "checkpoint", "step": 3, "state": "saved", "bytes": 10, "files": [], "seconds": 2.5},
        event("checkpoint.failed", step=3),
        event("worker.lost", worker="w1"),
    ]
    first = driver.seq
    for _ in range(3):
        driver.post(*facts, first_seq=first)
    assert world.metric("elastrain_steps_total") == 3
    assert world.metric("elastrain_pauses_total") == 1
    assert world.metric("elastrain_pause_seconds_total") == 1.5
    assert world.metric("elastrain_checkpoint_duration_seconds_sum") == 2.5
    assert world.metric("elastrain_checkpoint_bytes_total") == 10
    assert world.metric("elastrain_checkpoint_failures_total") == 1
    assert world.metric("elastrain_worker_events_total", event="lost") == 1


def test_steps_of_a_lost_attempt_that_are_computed_again_are_lost_steps(world: World) -> None:
    id, driver = world.running()
    speed = {"samples_per_s": 32.0, "workers_active": 2}  # half a step of 64 samples a second
    driver.post({"kind": "progress", "status": "running", "step": 0, **speed})
    driver.post(*losses(*range(1, 11)))
    driver.spools(*losses(11, 12))
    driver.exits("FAILED")
    for _ in range(2):
        world.round(5.0)
    second = world.driver(id)
    second.claim()
    second.post(*losses(9, 10))
    second.post(*losses(11, 12, 13))
    assert world.metric("elastrain_steps_total") == 12 + 5, "those in the spool count as well"
    assert world.metric("elastrain_lost_steps_total") == 4, "9 to 12 were accepted before"
    assert world.metric("elastrain_lost_seconds_total") == pytest.approx(8.0)


def test_a_rollback_within_an_attempt_is_counted_too(world: World) -> None:
    _, driver = world.running()
    driver.post(*losses(1, 2, 3, 4, 5), event("rollback", **{"from": 5, "to": 2}))
    driver.post(*losses(3, 4, 5, 6, epoch_no=1))
    assert world.metric("elastrain_lost_steps_total") == 3


@pytest.mark.parametrize("odd", ["a minute", None, float("nan"), float("inf"), -3.0, True])
def test_a_number_that_is_none_spoils_no_counter(world: World, odd: Any) -> None:
    _, driver = world.running()
    driver.post(
        {"kind": "generation", "generation": 1, "pause_ms": odd},
        {"kind": "checkpoint", "step": 1, "state": "saved", "bytes": 1, "files": [], "seconds": odd},
    )
    assert world.metric("elastrain_pause_seconds_total") in (0.0, 0.001)
    assert world.metric("elastrain_checkpoint_duration_seconds_sum") in (0.0, 1.0)


def test_a_ray_that_is_away_and_a_silent_reconciler_are_seen(world: World) -> None:
    world.round()
    assert world.metric("elastrain_ray_up") == 1
    assert world.metric("elastrain_reconciler_leader") == 1
    assert world.metric("elastrain_ray_nodes", state="alive") == 1
    assert (world.metric("elastrain_reconciler_lag_seconds") or 9.0) < 1.0
    world.ray.trouble = "the connection was refused"
    world.round()
    assert world.metric("elastrain_ray_up") == 0
    assert world.metric("elastrain_reconciler_errors_total", kind="ray") == 1
    world.clock.pass_s(90.0)
    assert (world.metric("elastrain_reconciler_lag_seconds") or 0.0) > 90.0


def test_a_process_that_stands_by_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.store, "leads", lambda: False)
    world.round()
    assert world.metric("elastrain_reconciler_leader") == 0
    assert world.metric("elastrain_reconciler_round_duration_seconds_count") == 0


def test_a_scrape_without_a_database_says_that_and_keeps_what_is_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.running()

    def away() -> Any:
        raise Unavailable("The database does not answer")

    monkeypatch.setattr(world.store, "read", away)
    names = {metric.name for metric in StoreGauges(world.store, world.clock).collect()}
    assert names == {"elastrain_build_info", "elastrain_store_up"}
    assert world.metric("elastrain_store_up") == 0
    assert world.metric("elastrain_queue_wait_seconds_count") == 1


def test_every_kind_of_trouble_is_there_before_it_happens(world: World) -> None:
    assert {world.metric("elastrain_reconciler_errors_total", kind=kind) for kind in TROUBLES} == {0.0}

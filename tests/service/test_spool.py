"""What a driver could not tell: taken in after its death, once; as history after another attempt began."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from elastrain.service.errors import Gone
from world import ADMIN, World


def metric(step: int) -> dict[str, Any]:
    return {"kind": "metric", "step": step, "values": {"loss": float(step)}, "epoch_no": 0}


def event(text: str) -> dict[str, Any]:
    return {"kind": "event", "type": "step.skipped", "message": text, "data": {}}


def losses(world: World, id: str) -> list[int]:
    return [point[0] for point in world.control.metrics(id, actor=ADMIN)["loss"]]


def skipped(world: World, id: str) -> list[str]:
    return [e["message"] for e in world.events(id, "step.skipped")]


def test_a_driver_killed_while_the_service_was_away_has_told_everything(world: World) -> None:
    id, driver = world.running()
    driver.post(metric(1), event("a"))
    first = driver.seq
    driver.spools(metric(2), event("b"), metric(3))
    driver.spools(metric(4), event("c"))
    driver.post(metric(2), event("b"), first_seq=first)  # the service was back for a moment
    driver.exits("FAILED", "killed by signal 9")
    world.round()
    assert losses(world, id) == [1, 2, 3, 4]
    assert skipped(world, id) == ["a", "b", "c"]
    assert world.job(id)["counters"]["attempts"] == 2


def test_an_outcome_in_the_spool_comes_after_all_that_was_told_before_it(world: World) -> None:
    id, driver = world.running()
    outcome = driver.writes_outcome("succeeded")
    driver.spools(metric(1), event("last words"), {"kind": "outcome", **outcome})
    driver.exits()
    world.round()
    assert world.status(id) == "succeeded"
    told = [e["type"] for e in world.events(id)]
    assert told.index("step.skipped") < told.index("attempt.ended")
    assert losses(world, id) == [1]


def test_the_spool_is_read_while_ray_is_away_if_the_outcome_says_that_it_is_over(world: World) -> None:
    id, driver = world.running()
    driver.spools(metric(1))
    driver.writes_outcome("succeeded")
    world.ray.trouble = "the connection was refused"
    world.round()
    assert (world.status(id), losses(world, id)) == ("succeeded", [1])


def test_a_segment_that_cannot_be_read_holds_up_nothing(world: World) -> None:
    id, driver = world.running()
    driver.spools(metric(1))
    folder = f"jobs/{id}/attempts/1/spool"
    world.storage.put(f"{folder}/{driver.seq:012d}.json", b'{"first_seq": 3, "fac')
    driver.spools(metric(3), {"kind": "telepathy"}, first_seq=driver.seq + 1)
    driver.exits("FAILED")
    world.round()
    assert losses(world, id) == [1, 3]


@pytest.mark.parametrize("way", ["facts", "desired"])
def test_a_superseded_driver_may_tell_its_history_and_nothing_else(world: World, way: str) -> None:
    id, old = world.running()
    old.post(metric(1), event("before"))
    old.exits("FAILED")  # Ray says so, and is wrong
    world.round()
    world.round()
    new = world.driver(id)
    assert new.attempt == 2
    new.claim()
    new.post({"kind": "progress", "status": "running", "step": 1, "total_steps": 100})
    new.step(2, loss=2.0)
    if way == "desired":
        with pytest.raises(Gone):
            old.desired()
        return
    late = [metric(2), metric(3), event("late")]
    late += [{"kind": "outcome", "outcome": "succeeded", "step": 100}, {"kind": "progress", "step": 99}]
    for _ in range(2):  # the answer was lost
        with pytest.raises(Gone) as caught:
            old.post(*late, first_seq=old.seq)
    assert caught.value.extra["acked_seq"] == old.seq + len(late) - 1
    assert skipped(world, id) == ["before", "late"]
    assert losses(world, id) == [1, 2]
    job = world.job(id)
    assert (job["status"], job["attempt"], job["progress"]["step"]) == ("running", 2, 1)


def test_a_service_that_moved_leaves_its_address_for_drivers_that_know_the_old_one(world: World) -> None:
    id, _ = world.running(workers={"min": 1, "max": 1})
    waiting = world.submit()
    key = f"jobs/{id}/control.json"
    assert [entry.key for entry in world.storage.list(f"jobs/{id}") if entry.key == key] == []
    world.settings = replace(world.settings, driver_url="http://10.0.0.7:8470")
    world.restart()
    world.round()
    assert json.loads(world.storage.get(key)) == {"url": "http://10.0.0.7:8470"}
    assert world.storage.list(f"jobs/{waiting}") == []

"""Metrics: strict JSON whatever is reported; what is computed again replaces what was said before."""

import json
import math
from typing import Any

from world import ADMIN, World


def points(world: World, id: str, name: str = "loss", **options: Any) -> list[Any]:
    series = world.control.metrics(id, actor=ADMIN, **options)[name]
    return [[step, value] for step, value, _ in series]


def test_numbers_that_json_cannot_hold_are_words_and_their_neighbours_are_unharmed(world: World) -> None:
    id, driver = world.running()
    values = [math.nan, math.inf, -math.inf, float("1e400"), -0.0, 2**63, 10**400, 1.5]
    for step, value in enumerate(values, start=1):
        driver.step(step, loss=value)
    driver.post(
        {"kind": "metric", "step": 9, "values": {"": 1.0, "μ/损失": 2.0, "superseded": 3.0, "loss": "NaN"}}
    )
    found = world.control.metrics(id, actor=ADMIN)
    json.dumps(found, allow_nan=False)
    json.dumps(world.job(id), allow_nan=False)
    json.dumps(world.control.feed(id, actor=ADMIN, after=0, kinds={"metric"}), allow_nan=False)
    words = ["NaN", "Infinity", "-Infinity", "Infinity", -0.0, 2.0**63, "Infinity", 1.5, "NaN"]
    assert [value for _, value, _ in found["loss"]] == words
    assert found["μ/损失"][0][1] == 2.0 and found["(unnamed)"][0][1] == 1.0
    assert found["superseded_"][0][1] == 3.0 and found["superseded"] == []
    assert world.job(id)["metrics"]["latest"]["loss"] == "NaN"


def test_a_second_attempt_replaces_the_points_that_it_computes_again(world: World) -> None:
    id, driver = world.running()
    for step in range(1, 58):
        driver.step(step, loss=1.0)
    driver.post({"kind": "metric", "step": 55, "values": {"val_accuracy": 0.5}, "epoch_no": 0})
    driver.exits("FAILED")
    world.round()
    second = world.driver(id)
    second.claim()
    second.step(51, loss=2.0)
    found = world.control.metrics(id, actor=ADMIN)
    assert [point[:2] for point in found["loss"][-2:]] == [[50, 1.0], [51, 2.0]]
    assert "val_accuracy" not in found and found["superseded"] == [[51, 57, 1]]
    for step in range(52, 56):
        second.step(step, loss=2.0)
    second.post({"kind": "metric", "step": 55, "values": {"val_accuracy": 0.75}, "epoch_no": 0})
    assert points(world, id, "val_accuracy") == [[55, 0.75]]
    assert [step for step, _ in points(world, id)] == list(range(1, 56))


def test_a_rollback_inside_an_attempt_does_the_same(world: World) -> None:
    id, driver = world.running()
    facts = [{"kind": "metric", "step": step, "values": {"loss": 1.0}, "epoch_no": 0} for step in (1, 2, 3)]
    again = [{"kind": "metric", "step": step, "values": {"loss": 5.0}, "epoch_no": 1} for step in (2, 3)]
    driver.post(*facts, *again)
    assert points(world, id) == [[1, 1.0], [2, 5.0], [3, 5.0]]
    assert world.control.metrics(id, actor=ADMIN)["superseded"] == [[2, 3, 1]]


def test_a_rollback_within_one_batch_of_facts_loses_no_point(world: World) -> None:
    id, driver = world.running()
    driver.step(1, loss=1.0)
    facts = [{"kind": "metric", "step": step, "values": {"loss": 1.0}, "epoch_no": 0} for step in (2, 3, 4)]
    driver.post(*facts, {"kind": "metric", "step": 3, "values": {"loss": 9.0}, "epoch_no": 1})
    assert points(world, id) == [[1, 1.0], [2, 1.0], [3, 9.0]]


def test_thinned_series_keep_the_newest_point_and_the_asked_names(world: World) -> None:
    id, driver = world.running()
    driver.post(
        *[
            {"kind": "metric", "step": step, "values": {"loss": float(step), "lr": 0.1}, "epoch_no": 0}
            for step in range(1, 1002)
        ]
    )
    found = points(world, id, names=["loss"], points=100)
    assert len(found) <= 100 and found[-1] == [1001, 1001.0]
    assert set(world.control.metrics(id, actor=ADMIN, names=["loss"])) == {"loss", "superseded"}
    assert points(world, id, from_step=1000) == [[1000, 1000.0], [1001, 1001.0]]


def test_the_feed_gives_everything_once_in_the_order_of_its_positions(world: World) -> None:
    id, driver = world.running()
    for step in range(1, 30):
        driver.step(step)
        driver.post({"kind": "event", "type": "checkpoint.saved", "message": f"step {step}"})
    rows, after = [], 0
    while page := world.control.feed(id, actor=ADMIN, after=after, kinds={"event", "metric"}, limit=7)[
        "rows"
    ]:
        rows += page
        after = page[-1]["position"]
    positions = [row["position"] for row in rows]
    assert positions == sorted(set(positions)) and len(rows) == world_count(world, id) + 29


def world_count(world: World, id: str) -> int:
    return len(world.events(id))

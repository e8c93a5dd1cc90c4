"""What people see, when those who were to tell of it are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from elastrain.trainers.coordination.tally import Tally
from elastrain.trainers.membership.machine import Machine, Policy
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.spec import parse_spec

EVALUATED = Cursor(step=20, updates=20, evaluated_step=20, metrics={"val_loss": 0.5})


def tally(facts: list[Json]) -> Tally:
    spec: dict[str, Any] = {
        "name": "a",
        "task": "a:B",
        "optimizer": {"name": "sgd", "lr": 1.0},
        "batch": {"size": 8, "microbatch": 1},
        "steps": 40,
    }
    return Tally(parse_spec(spec), facts.append)


def points(facts: list[Json]) -> list[tuple[int, Json]]:
    return [(f["step"], f["values"]) for f in facts if f["kind"] == "metric"]


def test_rank_0_died_with_what_an_evaluation_had_found_and_the_survivors_told_it() -> None:
    facts: list[Json] = []
    tally(facts).opened(EVALUATED.to_json())
    assert points(facts) == [(20, {"val_loss": 0.5})]


def test_rank_0_died_a_step_later_before_its_words_had_come() -> None:
    facts: list[Json] = []
    tally(facts).opened(replace(EVALUATED, step=21).to_json())
    assert points(facts) == [(20, {"val_loss": 0.5})]


def test_an_evaluation_that_was_heard_of_is_not_told_again() -> None:
    facts: list[Json] = []
    told = tally(facts)
    told.evaluated(20, {"val_loss": 0.5})
    told.opened(EVALUATED.to_json())
    told.opened(replace(EVALUATED, step=21).to_json())
    assert points(facts) == [(20, {"val_loss": 0.5})]


def test_two_members_tell_of_every_evaluation_and_the_slower_one_changes_nothing() -> None:
    facts: list[Json] = []
    told = tally(facts)
    for step in (20, 30, 20, 30):  # the first one's words, then the second one's
        told.evaluated(step, {"val_loss": 0.5})
    assert [step for step, _ in points(facts)] == [20, 30]


def test_after_a_rollback_an_evaluation_is_told_once_more_but_not_that_of_the_checkpoint() -> None:
    facts: list[Json] = []
    told = tally(facts)
    told.evaluated(30, {"val_loss": 0.4})
    told.restored(EVALUATED)
    told.opened(EVALUATED.to_json())
    told.evaluated(30, {"val_loss": 0.4})
    assert points(facts) == [(30, {"val_loss": 0.4}), (30, {"val_loss": 0.4})]


# ---- what goes wrong in training ---------------------------------------------------------------


def accepted(told: Tally, loss: float, **more: Any) -> None:
    step = told.cursor.step
    record = {"step": step, "loss": loss * 8, "weight": 8.0, "norm_sq": 4.0, "used": "3", "ids": "a", **more}
    record = {"bad": [], "workers": [], "seconds": {}, **record}
    told.accepted(record, None, Machine(Policy(1, 1, 1)))


def learned(facts: list[Json]) -> Tally:
    told = tally(facts)
    layers = [["first", 4, "1"], ["last", 4, "2"]]
    told.learn({"train_size": 800, "parameters": 2, "layers": layers})
    return told


def events(facts: list[Json], type_: str) -> list[Json]:
    return [f["data"] for f in facts if f["kind"] == "event" and f["type"] == type_]


def test_a_spike_of_the_loss_is_told_once_with_what_was_expected() -> None:
    facts: list[Json] = []
    told = learned(facts)
    for loss in [1.0] * 20 + [9.0, 8.0, 1.0]:
        accepted(told, loss)
    assert events(facts, "loss.spike") == [{"step": 21, "loss": 9.0, "expected": 1.0, "limit": 1.25}]


def test_norms_that_were_measured_are_metrics_of_their_step_and_an_odd_layer_is_named() -> None:
    facts: list[Json] = []
    told = learned(facts)
    accepted(told, 1.0, layers=[[0.0, 4.0, 0.04], [64.0, 4.0, 0.04]])
    values = points(facts)[0][1]
    assert values["grad_norm/last"] == 8.0 and values["update_ratio/first"] == 0.1
    assert [e["layer"] for e in events(facts, "gradient.vanishing")] == ["first"]
    accepted(told, 1.0)
    assert not any("/" in name for name in points(facts)[1][1])


def test_the_rate_that_is_shown_after_a_rollback_is_the_lower_one() -> None:
    facts: list[Json] = []
    told = learned(facts)
    told.restored(Cursor(step=0, rollbacks=2))
    accepted(told, 1.0)
    assert points(facts)[0][1]["lr"] == 0.25

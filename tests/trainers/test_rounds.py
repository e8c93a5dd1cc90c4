"""Rounds: which samples each replica reads in which inner step."""

from __future__ import annotations

from typing import Any

import pytest

from elastrain.trainers.coordination.tally import Tally
from elastrain.trainers.membership.machine import Machine
from elastrain.trainers.numerics.rounds import Rounds, plan_of
from elastrain.trainers.spec import SpecError, amended, parse_spec, spec_digest
from trainers.stage import training


def spec_of(strategy: Any = "local_sgd", **fields: Any) -> Any:
    return parse_spec({"name": "x", "task": "a:B", "epochs": 2, "strategy": strategy, **fields})


def local(steps: int, replicas: int | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "local_sgd", "local_steps": steps, "replicas": replicas, **more}


@pytest.mark.parametrize("samples", [1, 2, 7, 40, 103, 256, 300])
@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
def test_every_sample_of_an_epoch_is_read_once_in_equal_inner_steps(
    samples: int, steps: int, replicas: int
) -> None:
    batch = {"size": 32, "microbatch": 4}
    plan = plan_of(spec_of(local(steps, replicas), batch=batch, workers={"max": 1}), samples)
    assert isinstance(plan, Rounds)
    read: list[int] = []
    for number in range(plan.steps_per_epoch):
        for replica in range(plan.count(number)):
            cuts = plan.cuts(number, replica)
            assert len(cuts) == plan.inner_steps(number) <= steps
            assert all(0 < len(microbatch) <= 4 for cut in cuts for microbatch in cut)
            flat = [int(i) for cut in cuts for microbatch in cut for i in microbatch]
            assert flat == plan.indices(number, replica).tolist()
            read += flat
    assert sorted(read) == list(range(samples))


def test_a_short_round_shortens_every_run_before_it_leaves_out_a_replica() -> None:
    plan = plan_of(spec_of(local(5, 4), batch={"size": 64, "microbatch": 8}), 320 + 100)
    assert isinstance(plan, Rounds)
    assert (plan.samples(1), plan.count(1), plan.inner_steps(1)) == (100, 4, 2)
    assert [len(plan.indices(1, replica)) for replica in range(4)] == [25] * 4
    plan = plan_of(spec_of(local(5, 4), batch={"size": 64, "microbatch": 8}), 320 + 20)
    assert (plan.count(1), plan.inner_steps(1)) == (2, 1)


def test_a_full_round_has_what_the_spec_says() -> None:
    plan = plan_of(spec_of(local(5, 4), batch={"size": 64, "microbatch": 8}), 3200)
    assert isinstance(plan, Rounds)
    assert (plan.steps_per_epoch, plan.total_steps, plan.count(0), plan.inner_steps(0)) == (10, 20, 4, 5)
    assert [[len(microbatch) for microbatch in cut] for cut in plan.cuts(0, 3)] == [[8, 8]] * 5


@pytest.mark.parametrize(
    ("fields", "pointer", "says"),
    [
        ({"strategy": local(4, 3)}, "/strategy/replicas", "3 replicas cannot share the 8 microbatches"),
        ({"strategy": local(4, 16)}, "/strategy/replicas", "use one of 1, 2, 4, 8"),
        ({"strategy": local(4, 2)}, "/workers/max", "4 workers are more than the 2 replicas"),
        ({"strategy": local(0)}, "/strategy/local_steps", "must be at least 1"),
        ({"strategy": local(4, outer={"nesterov": True})}, "/strategy/outer/nesterov", "momentum above 0"),
        ({"strategy": local(4, outer={"beta": 0.9})}, "/strategy/outer/beta", ""),
        ({"strategy": local(4, outer={"momentum": 1.0})}, "/strategy/outer/momentum", "less than 1"),
        ({"aggregate": "moments"}, "/aggregate", "got local_sgd: use gradients"),
        ({"compression": "int8"}, "/compression/name", "does not go with strategy local_sgd"),
        ({"wire_nodes": 4}, "/wire_nodes", "leave it out"),
    ],
)
def test_what_cannot_go_together_with_rounds_is_refused_in_plain_words(
    fields: dict[str, Any], pointer: str, says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(**fields)
    told = {error["pointer"]: error["detail"] for error in caught.value.errors}
    assert pointer in told and says in told[pointer], told


def test_the_number_of_replicas_is_the_specs_whatever_the_workers_are() -> None:
    few, many = spec_of(local(4, 8), workers={"max": 2}), spec_of(local(4, 8), workers={"max": 8})
    assert plan_of(few, 999).count(0) == plan_of(many, 999).count(0) == 8
    assert spec_digest(few) == spec_digest(many)


def test_a_running_job_gets_no_more_workers_than_it_has_replicas() -> None:
    running = spec_of(local(4, 4), workers={"max": 2})
    assert amended(running, {"workers": {"max": 4}}).workers.max == 4
    with pytest.raises(SpecError, match="5 workers are more than the 4 replicas of local_sgd"):
        amended(running, {"workers": {"max": 5}})


def test_diloco_is_short_for_its_outer_optimizer() -> None:
    long = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
    assert spec_of(local(4, outer="diloco")).strategy == spec_of(local(4, outer=long)).strategy
    assert spec_of(local(4, outer="average")).strategy == spec_of(local(4)).strategy


def test_a_member_that_is_lost_costs_the_inner_steps_that_it_had_begun_in_this_round() -> None:
    stage = training(2)
    machine: Machine = stage.machine
    tally = Tally(spec_of(local(4)), lambda fact: None)
    assert tally.lost("w1 is lost", {"worker": "w1"}, machine)[1]["inner_steps"] == 0
    stage.began("w1", 1).began("w1", 1).began("w1", 1)
    text, data = tally.lost("w1 is lost", {"worker": "w1"}, machine)
    assert data == {"worker": "w1", "rank": 1, "step": 3, "inner_steps": 3}
    assert text.endswith("at most 3 inner steps are computed again")
    stage.commit()
    assert tally.lost("w1 is lost", {"worker": "w1"}, machine)[1]["inner_steps"] == 0
    stage.began("w1", 1)
    assert tally.lost("w1 is lost", {"worker": "w1"}, machine)[1]["inner_steps"] == 1

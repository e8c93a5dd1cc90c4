"""The learning rate is a function of applied updates and of nothing else."""

import math
from typing import Any

import pytest

from elastrain.trainers.numerics.schedules import learning_rate
from elastrain.trainers.spec import JobSpec, parse_spec


def job(lr: float = 1.0, steps: int = 100, **schedule: Any) -> JobSpec:
    optimizer = {"name": "sgd", "lr": lr}
    return parse_spec(
        {"name": "x", "task": "a:B", "steps": steps, "optimizer": optimizer, "schedule": schedule}
    )


def test_linear_decay_is_half_way_down_at_half_the_steps() -> None:
    # Case B08; 0.0 at step 50 is what a rate advanced once per worker gives.
    spec = job(decay="linear")
    assert learning_rate(spec, 0, 100) == 1.0
    assert learning_rate(spec, 50, 100) == 0.5
    assert learning_rate(spec, 99, 100) == pytest.approx(0.01)


def test_cosine_decay_is_the_cosine_at_a_quarter_of_the_steps() -> None:
    # Case B08; 0.5 is what a rate advanced once per worker gives.
    assert learning_rate(job(decay="cosine"), 25, 100) == pytest.approx(0.853553, abs=1e-6)


def test_a_skipped_step_does_not_move_the_rate() -> None:
    # Case D12: ten steps of which one is skipped use the rates of nine updates.
    spec = job(decay="linear", steps=10)
    updates, rates = 0, []
    for step in range(10):
        rate = learning_rate(spec, updates, 10)
        if step != 3:
            rates.append(rate)
            updates += 1
    assert rates == pytest.approx([1.0 - u / 10 for u in range(9)])


def test_constant_stays_constant() -> None:
    assert {learning_rate(job(lr=0.3), update, 100) for update in range(120)} == {0.3}


def test_warmup_rises_evenly_and_wastes_no_update() -> None:
    spec = job(warmup_steps=4)
    assert [learning_rate(spec, update, 100) for update in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_decay_begins_after_warmup_and_ends_at_min_lr() -> None:
    spec = job(warmup_steps=20, decay="linear", min_lr=0.2)
    assert learning_rate(spec, 20, 100) == 1.0
    assert learning_rate(spec, 60, 100) == pytest.approx(0.6)
    assert learning_rate(spec, 100, 100) == pytest.approx(0.2)
    assert learning_rate(spec, 150, 100) == pytest.approx(0.2), "never below, even past the plan"


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_decay_never_rises(decay: str) -> None:
    rates = [learning_rate(job(decay=decay, min_lr=0.01), update, 100) for update in range(101)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.01)


def test_a_job_shorter_than_its_warmup_ends_while_rising() -> None:
    spec = parse_spec(
        {"name": "x", "task": "a:B", "epochs": 1, "schedule": {"warmup_steps": 10, "decay": "cosine"}}
    )
    rates = [learning_rate(spec, update, 5) for update in range(5)]
    assert rates == [pytest.approx(1e-3 * (u + 1) / 10) for u in range(5)]
    assert all(math.isfinite(learning_rate(spec, update, 5)) for update in range(20))

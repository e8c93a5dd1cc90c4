"""Training that goes wrong by itself: how it is noticed, and that everybody notices it alike."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.membership import messages as m
from elastrain.trainers.numerics.cursor import Cursor, Verdict, advance
from elastrain.trainers.numerics.schedules import learning_rate
from elastrain.trainers.numerics.stability import Expected, remembered, spikes
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.spec.stability import LossSpike
from trainers.stage import Stage, training

RULE = LossSpike()


def watch(losses: list[float], rule: LossSpike = RULE) -> list[int]:
    """The steps whose losses are spikes."""
    past: tuple[float, ...] = ()
    found = []
    for step, loss in enumerate(losses):
        if spikes(past, loss, rule):
            found.append(step)
        past = remembered(past, loss, rule)
    return found


def falling(steps: int, noise: float, seed: int = 1) -> list[float]:
    dice = random.Random(seed)
    return [math.exp(-step / 200) * 2 + 0.3 + noise * dice.gauss(0, 1) for step in range(steps)]


# ---- spikes of the loss ------------------------------------------------------------------------


def test_a_loss_that_jumps_is_a_spike() -> None:
    losses = falling(200, 0.05)
    losses[150] *= 3
    assert watch(losses) == [150]


def test_the_noise_of_a_thousand_steps_is_no_spike() -> None:
    assert watch(falling(1000, 0.1)) == []


def test_losses_that_are_skewed_to_the_right_as_they_are_late_in_training_are_hardly_ever_spikes() -> None:
    dice = random.Random(2)
    assert len(watch([dice.expovariate(1.0) for _ in range(2000)])) <= 10


def test_three_odd_losses_do_not_hide_the_fourth() -> None:
    losses = falling(100, 0.02)
    for step in (70, 75, 80, 85):
        losses[step] = 9.0
    assert watch(losses) == [70, 75, 80, 85]


def test_a_loss_that_stays_high_is_soon_usual() -> None:
    found = watch([1.0] * 50 + [4.0] * 100)
    assert found[0] == 50 and found[-1] < 50 + RULE.window


def test_the_first_losses_are_compared_with_nothing() -> None:
    assert watch([1.0, 900.0] * 8) == []


def test_a_loss_may_be_below_zero() -> None:
    losses = [-5.0 - 0.01 * (step % 7) for step in range(60)]
    losses[50] = 3.0
    assert watch(losses) == [50]


def test_who_does_not_want_to_know_keeps_nothing() -> None:
    off = LossSpike(policy="off")
    assert watch([1.0] * 40 + [9.0], off) == [] and remembered((), 1.0, off) == ()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.randoms())
def test_what_is_expected_does_not_depend_on_the_order(losses: list[float], dice: random.Random) -> None:
    mixed = losses.copy()
    dice.shuffle(mixed)
    assert Expected.of(losses) == Expected.of(mixed)


# ---- the cursor --------------------------------------------------------------------------------


def record(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "loss": loss, "weight": 1.0, "norm_sq": 1.0, "used": "1", "ids": "a"}


def go(cursor: Cursor, *losses: float) -> Cursor:
    for loss in losses:
        said = record(cursor.step, loss)
        cursor = advance(cursor, said, Verdict.of(said, 1.0, None), 1, RULE)
    return cursor


def test_a_step_is_proven_only_by_the_one_that_was_computed_from_it() -> None:
    good = go(Cursor(), *[1.0] * 20)
    assert (good.step, good.proven) == (20, 19)
    bad = go(good, math.nan, math.nan)
    assert (bad.step, bad.proven, bad.skipped_in_row) == (22, 19, 2)
    assert go(bad, 1.0).proven == 22


def test_a_spike_proves_nothing_and_a_usual_loss_ends_the_row() -> None:
    spiked = go(Cursor(), *[1.0] * 20, 50.0, 60.0)
    assert (spiked.spikes_in_row, spiked.proven) == (2, 19)
    assert go(spiked, 1.0).spikes_in_row == 0


def test_a_cursor_of_an_older_checkpoint_has_nothing_of_all_this() -> None:
    old = {k: v for k, v in Cursor(step=3).to_json().items() if k in ("step", "updates", "counts", "chain")}
    assert Cursor.from_json(old) == Cursor(step=3)


def test_what_was_learned_of_the_loss_travels_with_the_cursor() -> None:
    cursor = go(Cursor(), *[1.0] * 40)
    assert Cursor.from_json(cursor.to_json()) == cursor and len(cursor.losses) == RULE.window


def test_each_rollback_lowers_the_whole_schedule() -> None:
    said = {"name": "x", "task": "a:B", "steps": 100, "optimizer": {"name": "sgd", "lr": 1.0}}
    spec = parse_spec({**said, "schedule": {"warmup_steps": 10}, "non_finite": {"lr_factor": 0.5}})
    assert [learning_rate(spec, 4, 100, n) for n in range(3)] == [0.5, 0.25, 0.125]


# ---- the way back ------------------------------------------------------------------------------

REWIND = m.Rewind(1, 1, "the loss of step 3 is not finite")


def wrong(stage: Stage, *workers: str) -> Stage:
    return stage.report(*workers, why="rewound", rewind=REWIND)


def test_all_members_say_that_it_went_wrong_and_go_on_from_a_checkpoint_though_nothing_is_lost() -> None:
    stage = training(2)
    stage.feed(m.CheckpointSaved(1))
    stage.saved = 1
    wrong(stage, "w0", "w1")
    assert (stage.opened.restore, stage.opened.rewind) == (True, REWIND)
    assert stage.said("rollback") == [{"from": 3, "to": 1, "rollback": 1, "why": REWIND.why}]
    stage.seal().commit()
    assert [a.step for a in stage.all(m.Accept)] == [1, 2, 3, 2]


def test_one_said_that_it_went_wrong_and_the_other_died_before_it_could() -> None:
    stage = training(2)
    wrong(stage, "w0").die("w1")
    assert (stage.opened.members, stage.opened.rewind) == (("w0",), REWIND)


def test_the_generation_that_went_back_broke_and_the_next_one_does_not_go_back_twice() -> None:
    stage = training(2)
    wrong(stage, "w0", "w1").die("w1")
    stage.report("w0", held=())
    assert (stage.opened.restore, stage.opened.rewind) == (True, None)
    assert len(stage.said("rollback")) == 1


def test_it_went_wrong_and_below_the_minimum_nobody_forgets_it() -> None:
    stage = training(2)
    stage.feed(m.Scale(2, 2))
    wrong(stage.die("w1"), "w0")
    assert stage.all(m.Open)[-1].generation == 1, "it waits"
    stage.arrive("w2")
    assert (stage.opened.members, stage.opened.rewind) == (("w0", "w2"), REWIND)


@pytest.mark.parametrize("rollbacks", [0, 2])
def test_a_rollback_is_told_also_where_it_leads_to_the_very_beginning(rollbacks: int) -> None:
    stage = training(1)
    stage.report("w0", why="rewound", rewind=replace(REWIND, newest=0, number=rollbacks + 1))
    assert stage.said("rollback")[0]["to"] == 0

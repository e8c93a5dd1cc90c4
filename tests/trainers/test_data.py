"""The computed order: every sample exactly once, the same whoever asks, and cuts that fit any size."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.numerics.data import EmptyDataset, EvalPlan, Plan, sample_order

seeds = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 10_000)


@given(seeds, epochs, st.integers(1, 3000))
def test_an_epoch_has_every_sample_exactly_once(seed: int, epoch: int, n: int) -> None:
    assert np.array_equal(np.sort(sample_order(seed, epoch, n, range(n))), np.arange(n))


@given(seeds, epochs, st.integers(1, 2**40), st.data())
def test_any_part_of_the_order_is_what_the_whole_order_says(
    seed: int, epoch: int, n: int, data: st.DataObject
) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    together = sample_order(seed, epoch, n, positions)
    alone = [int(sample_order(seed, epoch, n, [position])[0]) for position in positions]
    assert together.tolist() == alone
    assert all(0 <= index < n for index in alone)
    assert len(set(alone)) == len(set(positions))


def test_the_order_is_the_same_on_every_machine_and_in_every_version() -> None:
    # Pinned: a changed order would silently change what a resumed job reads.
    assert sample_order(0, 0, 10, range(10)).tolist() == PINNED_10
    assert sample_order(7, 3, 1_000_003, [0, 1, 2, 1_000_002]).tolist() == PINNED_MILLION


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(sample_order(s, e, 50, range(50)).tolist()) for s in range(20) for e in range(20)}
    assert len(orders) == 400


def test_every_order_of_four_samples_comes_about_equally_often() -> None:
    seen = Counter(tuple(sample_order(0, epoch, 4, range(4)).tolist()) for epoch in range(4800))
    assert len(seen) == 24
    chi_square = sum((times - 200) ** 2 / 200 for times in seen.values())
    assert chi_square < 49.7  # 23 degrees of freedom, 0.1 %


def test_neighbours_do_not_stay_neighbours() -> None:
    order = sample_order(1, 0, 10_000, range(10_000))
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.03


def test_without_shuffle_the_order_is_the_dataset_s_own() -> None:
    assert sample_order(5, 2, 7, range(7), shuffle=False).tolist() == list(range(7))


def test_a_position_outside_the_epoch_is_refused() -> None:
    for wrong in ([7], [-1], [0, 9]):
        with pytest.raises(IndexError, match="outside an epoch of 7 samples"):
            sample_order(0, 0, 7, wrong)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    microbatch = draw(st.integers(1, 9))
    batch = microbatch * draw(st.integers(1, 9))
    n = draw(st.integers(1, 300))
    return Plan(n, batch, microbatch, epochs=draw(st.integers(1, 3)), seed=draw(seeds))


@given(plans())
def test_each_epoch_of_a_plan_reads_each_sample_once(plan: Plan) -> None:
    for epoch in range(plan.total_steps // plan.steps_per_epoch):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        assert {plan.epoch(step) for step in steps} == {epoch}
        read = [plan.indices(step, j) for step in steps for j in range(plan.count(step))]
        assert np.array_equal(np.sort(np.concatenate(read)), np.arange(plan.n))


@given(plans())
def test_microbatches_are_never_empty_nor_too_large_and_near_equal(plan: Plan) -> None:
    for step in range(plan.total_steps):
        sizes = [len(plan.positions(step, j)) for j in range(plan.count(step))]
        assert sum(sizes) == plan.samples(step)
        assert 1 <= min(sizes) <= max(sizes) <= plan.microbatch
        assert max(sizes) - min(sizes) <= 1
        if plan.samples(step) == plan.batch:
            assert sizes == [plan.microbatch] * (plan.batch // plan.microbatch)


@given(plans())
def test_samples_seen_is_the_sum_of_the_steps_before(plan: Plan) -> None:
    seen = 0
    for step in range(plan.total_steps):
        assert plan.samples_seen(step) == seen
        seen += plan.samples(step)
    assert plan.samples_seen(plan.total_steps) == seen == plan.n * plan.total_steps // plan.steps_per_epoch


def test_a_dataset_of_103_samples_is_neither_padded_nor_dropped() -> None:
    plan = Plan(103, 8, 2, epochs=3, seed=7)
    assert plan.steps_per_epoch == 13
    assert plan.total_steps == 39
    assert plan.samples(12) == 7
    assert plan.count(12) == 4
    assert [len(plan.positions(12, j)) for j in range(4)] == [2, 2, 2, 1]


def test_a_batch_longer_than_the_dataset_still_makes_a_step_an_epoch() -> None:
    # Case D04: five microbatches where eight are asked for.
    plan = Plan(5, 8, 1, epochs=2)
    assert (plan.steps_per_epoch, plan.total_steps, plan.count(0)) == (1, 2, 5)


def test_the_last_short_batch_of_case_d02_has_two_microbatches() -> None:
    plan = Plan(10, 4, 1, epochs=1, shuffle=False)
    assert [plan.count(step) for step in range(plan.total_steps)] == [4, 4, 2]
    assert [plan.indices(2, j).tolist() for j in range(2)] == [[8], [9]]


def test_a_plan_by_steps_goes_on_into_further_epochs() -> None:
    plan = Plan(10, 4, 2, steps=7)
    assert plan.total_steps == 7
    assert [plan.epoch(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert plan.samples_seen(7) == 24


def test_a_resume_in_a_later_epoch_reads_that_epoch_s_order() -> None:
    # Case B06: the cursor is the step number alone.
    first, resumed = Plan(100, 10, 5, epochs=4, seed=7), Plan(100, 10, 5, epochs=4, seed=7)
    undisturbed = [first.indices(step, j).tolist() for step in range(40) for j in range(2)]
    rest = [resumed.indices(step, j).tolist() for step in range(25, 40) for j in range(2)]
    assert rest == undisturbed[50:]
    assert rest[0] != undisturbed[10], "epoch 2 is not epoch 0 again"


def test_an_evaluation_is_one_pass_in_the_dataset_s_own_order() -> None:
    plan = EvalPlan(10, 4, 2)
    read = [plan.indices(step, j) for step in range(plan.total_steps) for j in range(plan.count(step))]
    assert np.concatenate(read).tolist() == list(range(10))


def test_an_empty_dataset_is_refused() -> None:
    for make in (
        lambda: Plan(0, 4, 2, epochs=1),
        lambda: EvalPlan(0, 4, 2),
        lambda: sample_order(0, 0, 0, []),
    ):
        with pytest.raises(EmptyDataset, match="0 samples"):
            make()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="batch of 8 cannot be cut into microbatches of 3"):
        Plan(10, 8, 3, epochs=1)
    with pytest.raises(ValueError, match="exactly one of epochs and steps"):
        Plan(10, 8, 4)
    with pytest.raises(ValueError, match="exactly one of epochs and steps"):
        Plan(10, 8, 4, epochs=1, steps=1)
    with pytest.raises(ValueError, match="nothing to do"):
        Plan(10, 8, 4, steps=0)


def test_a_step_or_microbatch_past_the_end_is_refused() -> None:
    plan = Plan(10, 4, 2, epochs=1)
    with pytest.raises(IndexError, match=r"steps 0\.\.2, not 3"):
        plan.count(3)
    with pytest.raises(IndexError, match=r"microbatches 0\.\.0, not 1"):
        plan.indices(2, 1)


PINNED_10 = [0, 7, 9, 1, 6, 4, 2, 8, 5, 3]
PINNED_MILLION = [689328, 481415, 797317, 828589]

"""Linear probes under the other ways to make an update: what the parameters must be, with 1 to 3 workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.harness import probe
from numerics.together import Together

LOCAL = {"strategy": {"name": "local_sgd", "local_steps": 1}}  # a round of one step: its average is the step
DILOCO = {"strategy": {"name": "local_sgd", "local_steps": 3, "outer": "diloco"}}
MOMENTS = {"aggregate": "moments", "optimizer": {"name": "adam", "lr": 0.1}}
WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])
OVERFLOWS = 1e39  # infinite in single precision


def spec_of(rows: list[Any], microbatches: int = 4, **fields: Any) -> dict[str, Any]:
    batch = {"size": microbatches, "microbatch": 1}
    return probe(rows, **{"batch": batch, "workers": {"min": 1, "max": microbatches}, **fields})


def adam(steps: list[list[float]], clip_norm: float = float("inf")) -> list[float]:
    """Adam with lr 0.1 from the means of the microbatches' gradients and squares, after each step."""
    w = m = v = 0.0
    found = []
    for t, gradients in enumerate(steps, start=1):
        mean = sum(gradients) / len(gradients)
        clip = min(1.0, clip_norm / (abs(mean) + 1e-6))
        m = 0.9 * m + 0.1 * clip * mean
        v = 0.999 * v + 0.001 * clip * clip * sum(g * g for g in gradients) / len(gradients)
        w -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
        found.append(w)
    return found


def path(trained: Together, name: str = "w") -> list[float]:
    return [float(weights[name]) for weights in trained.weights]


# ---- D02, D04: what a mean is taken over -------------------------------------------------------------


@WORKERS
def test_the_tail_of_an_epoch_is_divided_by_its_real_size(workers: int) -> None:
    rows = [float(i) for i in range(1, 11)]
    assert path(Together(spec_of(rows, **LOCAL), workers).train()) == [-2.5, -9.0, -18.5]
    moments = path(Together(spec_of(rows, **MOMENTS), workers).train())
    assert moments == pytest.approx(adam([rows[:4], rows[4:8], rows[8:]]), abs=1e-6)


@WORKERS
def test_a_batch_larger_than_the_epoch_still_updates_once(workers: int) -> None:
    rows = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert path(Together(spec_of(rows, 8, **LOCAL), workers).train()) == [-3.0]
    assert path(Together(spec_of(rows, 8, **MOMENTS), workers).train()) == pytest.approx(adam([rows]))


def test_a_round_longer_than_the_epoch_takes_as_many_inner_steps_as_there_are_samples_for() -> None:
    strategy = {"name": "local_sgd", "local_steps": 9}
    trained = Together(spec_of([1.0] * 10, 4, strategy=strategy), 2).train()
    assert path(trained) == [-2.0] and trained.first.cursor is not None
    assert trained.first.cursor.counts.common == 2


# ---- D06, D08: clipping, what nobody used ------------------------------------------------------------


@WORKERS
def test_the_norm_that_clips_is_that_of_a_whole_gradient(workers: int) -> None:
    spec = spec_of([[3.0, 4.0]] * 4, args={"sizes": {"a": 1, "b": 1}}, clip_norm=1.0)
    end = Together({**spec, **LOCAL}, workers).train().weights[-1]
    assert (float(end["a"]), float(end["b"])) == pytest.approx((-0.6, -0.8), abs=1e-5)


def test_replicas_clip_their_own_gradients_and_moments_the_mean() -> None:
    rows = [6.0, -2.0]
    spec = spec_of(rows, 2, clip_norm=1.0)
    assert path(Together({**spec, **LOCAL}, 2).train())[0] == pytest.approx(0.0, abs=1e-5)  # -1 and +1
    moments = Together(spec_of(rows, 2, clip_norm=1.0, **MOMENTS), 2).train()
    assert path(moments) == pytest.approx(adam([rows], clip_norm=1.0))
    assert moments.verdicts[0].grad_norm == pytest.approx(2.0)


@WORKERS
@pytest.mark.parametrize(
    "fields",
    [
        {**LOCAL, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}},
        {**DILOCO, "optimizer": {"name": "adam", "lr": 0.1, "weight_decay": 0.1}},
        {**MOMENTS, "optimizer": {"name": "adam", "lr": 0.1, "weight_decay": 0.1}},
    ],
)
def test_a_parameter_that_nobody_used_stays_put(fields: dict[str, Any], workers: int) -> None:
    args = {"sizes": {"w": 1, "u": 1}, "unused": ["u"], "start": 1.0}
    trained = Together(spec_of([1.0] * 40, args=args, **fields), workers).train()
    assert path(trained, "u")[-1] == 1.0 and path(trained)[-1] < 1.0


@WORKERS
def test_a_parameter_that_one_replica_moved_is_averaged_with_those_that_did_not(workers: int) -> None:
    rows = [[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 5
    spec = spec_of(rows, args={"sizes": {"w": 1, "u": 1}}, optimizer={"name": "sgd", "lr": 0.1}, **LOCAL)
    assert path(Together(spec, workers).train(), "u")[-1] == pytest.approx(-0.05 * 5)


# ---- D10 to D14: low precision, what is not finite ---------------------------------------------------


def test_low_precision_keeps_full_precision_masters_within_a_round_too() -> None:
    strategy = {"name": "local_sgd", "local_steps": 10}
    spec = spec_of([1.0] * 200, 2, args={"start": 1.0}, precision="bf16", strategy=strategy)
    trained = Together({**spec, "optimizer": {"name": "sgd", "lr": 0.001}}, 2).train()
    assert path(trained)[-1] == pytest.approx(0.9, abs=0.002)


@WORKERS
@pytest.mark.parametrize("fields", [LOCAL, MOMENTS])
def test_a_skipped_step_moves_neither_the_schedule_nor_the_weights(
    fields: dict[str, Any], workers: int
) -> None:
    rows = [1.0] * 40
    rows[9] = OVERFLOWS  # of step 3
    trained = Together(spec_of(rows, schedule={"decay": "linear"}, **fields), workers).train()
    cursor = trained.first.cursor
    assert cursor is not None and (cursor.step, cursor.updates, cursor.skipped) == (10, 9, 1)
    assert [v.applied for v in trained.verdicts] == [True, True, False, *[True] * 7]
    assert path(trained)[2] == path(trained)[1]
    if fields is LOCAL:
        assert path(trained)[-1] == pytest.approx(-sum(1 - u / 10 for u in range(9)), abs=1e-5)


def test_finite_losses_too_large_to_add_in_single_precision_are_not_called_nan() -> None:
    spec = spec_of([3e38, 3e38], 2, args={"start": 1.0}, optimizer={"name": "sgd", "lr": 1e-38}, **LOCAL)
    assert path(Together(spec, 2).train()) == [pytest.approx(1.0 - 3.0)]


# ---- D16 to D22: buffers, sparse gradients, the loss shown -------------------------------------------


@WORKERS
@pytest.mark.parametrize("fields", [{**LOCAL, "optimizer": {"name": "sgd", "lr": 0.0}}, MOMENTS])
def test_batch_norm_statistics_are_the_mean_over_replicas_or_microbatches(
    fields: dict[str, Any], workers: int
) -> None:
    rows = [0.0, 0.0, 10.0, 10.0, 0.0, 0.0, 10.0, 10.0]
    batch = {"size": 8, "microbatch": 2}
    spec = probe(rows, task="Normed", batch=batch, epochs=10, workers={"min": 1, "max": 4}, **fields)
    assert Together(spec, workers).train().buffer("0.running_mean") == pytest.approx(3.256608, abs=1e-5)


@WORKERS
def test_repeated_rows_of_a_sparse_gradient_are_summed_and_others_do_not_move(workers: int) -> None:
    spec = probe([], task="Sparse", batch={"size": 6, "microbatch": 2}, workers={"min": 1, "max": 3})
    spec["task_args"] = {"ids": [7, 7, 3, 7, 5, 5]}
    expected = torch.zeros(9)
    expected[7], expected[5], expected[3] = -0.5, -2 / 6, -1 / 6
    local = Together({**spec, **LOCAL}, workers).train().weights[-1]["weight"].reshape(-1)
    assert torch.allclose(local, expected, atol=1e-6) and (local[expected == 0] == 0).all()
    moments = Together({**spec, **MOMENTS}, workers).train().weights[-1]["weight"].reshape(-1)
    assert (moments[expected == 0] == 0).all() and (moments[expected < 0] < 0).all()


@WORKERS
def test_a_frozen_parameter_does_not_move_and_has_no_state(workers: int) -> None:
    args = {"sizes": {"w": 1, "f": 3}, "unused": ["f"], "frozen": ["f"], "start": 2.0}
    trained = Together(spec_of([1.0] * 12, args=args, optimizer={"name": "adam"}, **DILOCO), workers).train()
    assert (trained.weights[-1]["f"] == 2.0).all() and path(trained)[-1] < 2.0


@WORKERS
def test_the_loss_shown_is_the_mean_over_all_samples_of_a_round(workers: int) -> None:
    rows = [0.0] * 6 + [10.0] * 2
    spec = probe(rows, args={"start": 1.0}, batch={"size": 4, "microbatch": 1}, workers={"min": 1, "max": 4})
    strategy = {"name": "local_sgd", "local_steps": 2}
    trained = Together(
        {**spec, "strategy": strategy, "optimizer": {"name": "sgd", "lr": 0.0}}, workers
    ).train()
    assert [v.loss for v in trained.verdicts] == [2.5]


# ---- B: whoever computes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        MOMENTS,
        {**DILOCO, "optimizer": {"name": "adamw", "lr": 0.01}},
        {**DILOCO, "optimizer": {"name": "rmsprop", "momentum": 0.5, "centered": True}},
        {**DILOCO, "optimizer": {"name": "adagrad", "initial_accumulator_value": 0.1}},
    ],
    ids=["moments", "diloco-adamw", "diloco-rmsprop", "diloco-adagrad"],
)
def test_an_epoch_that_no_size_divides_gives_the_same_bits_for_any_number_of_workers(
    fields: dict[str, Any],
) -> None:
    rows = [[float(i % 7) - 2.5, float(i % 3), 1.0] for i in range(103)]
    spec = probe(
        rows,
        args={"sizes": {"a": 7, "b": 13, "c": 64}},
        batch={"size": 8, "microbatch": 2},
        epochs=3,
        shuffle=True,
        workers={"min": 1, "max": 4},
        **fields,
    )
    alone = Together(spec, 1).train()
    assert all(Together(spec, workers).train().same_bits(alone) for workers in (1, 2, 3, 4))
    assert not any(
        v[gap].any() for v in alone.first.gathered.values() for gap in alone.first.model.space.gaps()
    )
    assert alone.first.cursor is not None and alone.first.plan.samples_seen(alone.first.step) == 309

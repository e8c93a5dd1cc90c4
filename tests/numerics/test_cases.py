"""Groups (b) and (d) of the cases, as far as they are arithmetic: what parameters must be, however an update
is made, with 1 to 3 workers. What is about processes is in engine/test_every_way.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from elastrain.trainers.spec import SpecError, amended, parse_spec
from engine.harness import probe
from numerics.disk import Disk
from numerics.together import Together
from numerics.ways import (
    APART,
    ASKED,
    COMBINED,
    MOMENTS,
    REPLICAS,
    WAYS,
    Steps,
    all_ways,
    expected,
    fields_of,
    optimizer_of,
    outer,
    spec_of,
)

WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])
OVERFLOWS = 1e39  # infinite in single precision
CLOSE = 1e-5


def train(way: str, rows: list[Any], workers: int, microbatches: int = 4, **fields: Any) -> Together:
    return Together(spec_of(way, rows, microbatches, **fields), workers).train()


def cut(rows: list[float], size: int) -> Steps:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


# ---- B04, B08, B10: whoever computes, whenever the size changes ---------------------------------------


@all_ways("B04 bits")
def test_an_epoch_that_no_size_divides_gives_the_same_bits_for_any_number_of_workers(way: str) -> None:
    rows = [[float(i % 7) - 2.5, float(i % 3), 1.0] for i in range(103)]
    fields: dict[str, Any] = {
        "args": {"sizes": {"a": 7, "b": 13, "c": 64}},
        "batch": {"size": 8, "microbatch": 2},
        "epochs": 2,
        "shuffle": True,
        "optimizer": {"name": "adamw", "lr": 0.01},
    }
    alone = train(way, rows, 1, **fields)
    assert all(train(way, rows, workers, **fields).same_bits(alone) for workers in (2, 4))
    assert alone.first.cursor is not None and alone.first.plan.samples_seen(alone.first.step) == 206
    model = alone.first.model
    assert not any(v[gap].any() for v in alone.first.gathered.values() for gap in model.space.gaps())


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "rmsprop", "momentum": 0.5, "centered": True},
        {"name": "adagrad", "initial_accumulator_value": 0.1},
    ],
    ids=["rmsprop", "adagrad"],
)
def test_replicas_with_other_optimizers_give_the_same_bits_for_any_number_of_workers(
    optimizer: dict[str, Any],
) -> None:
    rows = [[float(i % 7) - 2.5, 1.0] for i in range(103)]
    strategy = {"name": "local_sgd", "local_steps": 3, "outer": "diloco"}
    args = {"sizes": {"a": 7, "b": 64}}
    spec = spec_of("DiLoCo", rows, 4, args=args, strategy=strategy, optimizer=optimizer, epochs=2)
    alone = Together(spec, 1).train()
    assert all(Together(spec, workers).train().same_bits(alone) for workers in (2, 3))


@all_ways("B08")
@WORKERS
def test_the_rate_is_a_function_of_updates_alone(way: str, workers: int) -> None:
    trained = train(way, [1.0] * 80, workers, schedule={"decay": "cosine"})
    rates = [0.5 * (1 + math.cos(math.pi * u / 20)) for u in range(20)]
    assert rates[5] == pytest.approx(0.853553, abs=1e-6)
    assert trained.path() == pytest.approx(expected(way, [[1.0] * 4] * 20, lr=rates), abs=CLOSE * 20)


@all_ways("B10")
@pytest.mark.parametrize("most", [0, 9, -1, 1.5, "two", None])
def test_a_size_that_cannot_be_is_refused_with_the_range_that_can(way: str, most: Any) -> None:
    spec = parse_spec(spec_of(way, [1.0] * 8))
    with pytest.raises(SpecError) as refused:
        amended(spec, {"workers": {"max": most}})
    said = [e["detail"] for e in refused.value.errors if e["pointer"].startswith("/workers")]
    assert said and "1 to 4" in said[0], said
    assert amended(spec, {"workers": {"max": 2}}).workers.max == 2


# ---- D02, D04: what a mean is taken over -------------------------------------------------------------


@all_ways("D02")
@WORKERS
def test_the_tail_of_an_epoch_is_divided_by_its_real_size(way: str, workers: int) -> None:
    rows = [float(i) for i in range(1, 11)]
    assert expected("all_reduce", cut(rows, 4)) == [-2.5, -9.0, -18.5]
    assert train(way, rows, workers).path() == pytest.approx(expected(way, cut(rows, 4)), rel=CLOSE)


@all_ways("D04")
@WORKERS
def test_a_batch_larger_than_the_epoch_still_updates_once(way: str, workers: int) -> None:
    rows = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert expected("all_reduce", [rows]) == [-3.0]
    assert train(way, rows, workers, 8).path() == pytest.approx(expected(way, [rows]), rel=CLOSE)


@all_ways("D04 refused")
@pytest.mark.parametrize("field", ["size", "microbatch"])
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_a_batch_that_cannot_be_is_refused(way: str, field: str, value: Any) -> None:
    with pytest.raises(SpecError) as refused:
        parse_spec(spec_of(way, [1.0], batch={"size": 4, "microbatch": 1, field: value}))
    assert any(e["pointer"] == f"/batch/{field}" for e in refused.value.errors)


def test_a_round_longer_than_the_epoch_takes_as_many_inner_steps_as_there_are_samples_for() -> None:
    trained = train("local_sgd", [1.0] * 10, 2, strategy={"name": "local_sgd", "local_steps": 9})
    assert trained.path() == [-2.0] and trained.first.cursor is not None
    assert trained.first.cursor.counts.common == 2


# ---- D06, D08: clipping, what nobody used ------------------------------------------------------------


@all_ways("D06")
@WORKERS
def test_the_norm_that_clips_is_that_of_a_whole_gradient(way: str, workers: int) -> None:
    trained = train(way, [[3.0, 4.0]] * 12, workers, 12, args={"sizes": {"a": 1, "b": 1}}, clip_norm=1.0)
    want = (-0.1, -0.1) if way in MOMENTS else (-0.6, -0.8)
    want = (outer([0.6])[0], outer([0.8])[0]) if way == "DiLoCo" else want
    assert (*trained.path("a"), *trained.path("b")) == pytest.approx(want, abs=CLOSE)
    norm = 1.0 if way in REPLICAS else 5.0  # of how far the replicas went, which they had clipped
    assert trained.verdicts[0].grad_norm == pytest.approx(norm, abs=CLOSE)


@all_ways("D06 parts")
def test_what_is_clipped_is_what_this_way_says(way: str) -> None:
    """The mean, and not the workers' parts; replicas clip their own, gossip by its workers' own norms."""
    rows = [6.0, -2.0, 0.5, 0.5, 4.0, 0.0]
    assert expected("all_reduce", [[6.0, -2.0]], clip=1.0) == pytest.approx([-1.0])
    trained = train(way, rows, 2, 2, clip_norm=1.0)
    assert trained.path() == pytest.approx(expected(way, cut(rows, 2), clip=1.0, workers=2), abs=CLOSE)


@all_ways("D08")
@WORKERS
def test_a_parameter_that_nobody_used_stays_put(way: str, workers: int) -> None:
    args = {"sizes": {"w": 1, "u": 1}, "unused": ["u"], "start": 1.0}
    optimizer = optimizer_of(way, 0.1, momentum=0.9, weight_decay=0.1)
    trained = train(way, [1.0] * 40, workers, args=args, optimizer=optimizer)
    unmoved = 1.0 if way != "gossip" else pytest.approx(1.0, abs=1e-6)  # thirds of it do not add up to it
    assert trained.path("u")[-1] == unmoved and trained.path()[-1] < 1.0


@all_ways("D08 some")
@WORKERS
def test_a_parameter_that_only_some_used_gets_the_mean_over_all(way: str, workers: int) -> None:
    rows = [[1.0, 0.0], [1.0, 1.0]] * 10
    fields: dict[str, Any] = {"args": {"sizes": {"w": 1, "u": 1}}, "optimizer": optimizer_of(way, 0.1)}
    want = expected(way, [[0.0, 1.0, 0.0, 1.0]] * 5, lr=0.1)
    assert expected("all_reduce", [[0.0, 1.0, 0.0, 1.0]] * 5, lr=0.1)[-1] == pytest.approx(-0.05 * 5)
    assert train(way, rows, workers, **fields).path("u") == pytest.approx(want, abs=CLOSE)


# ---- D10 to D14: low precision, what is not finite ---------------------------------------------------


@all_ways("D10")
def test_low_precision_keeps_full_precision_masters(way: str) -> None:
    fields: dict[str, Any] = {"args": {"start": 1.0}, "precision": "bf16"}
    trained = train(way, [1.0] * 400, 3, optimizer=optimizer_of(way, 0.001), **fields)
    want = 1.0 + expected(way, [[1.0] * 4] * 100, lr=0.001)[-1]
    assert trained.path()[-1] == pytest.approx(want, abs=1e-4)


def test_low_precision_keeps_full_precision_masters_within_a_round_too() -> None:
    fields: dict[str, Any] = {"args": {"start": 1.0}, "precision": "bf16"}
    strategy = {"name": "local_sgd", "local_steps": 10}
    sgd = {"name": "sgd", "lr": 0.001}
    trained = train("local_sgd", [1.0] * 200, 2, 2, strategy=strategy, optimizer=sgd, **fields)
    assert trained.path()[-1] == pytest.approx(0.9, abs=0.002)


@all_ways("D12")
@WORKERS
def test_a_skipped_step_moves_neither_the_schedule_nor_the_weights(way: str, workers: int) -> None:
    rows = [1.0] * 40
    rows[9] = OVERFLOWS  # the second microbatch of step 3
    trained = train(way, rows, workers, schedule={"decay": "linear"})
    cursor = trained.first.cursor
    assert cursor is not None and (cursor.step, cursor.updates, cursor.skipped) == (10, 9, 1)
    assert [v.applied for v in trained.verdicts] == [True, True, False, *[True] * 7]
    path = trained.path()
    assert path.pop(2) == path[1]
    rates = [1 - u / 10 for u in range(9)]
    assert path == pytest.approx(expected(way, [[1.0] * 4] * 9, lr=rates), abs=CLOSE)


@all_ways("D14")
@WORKERS
def test_a_nan_of_one_worker_is_one_decision_of_all(way: str, workers: int) -> None:
    args = {"sample": 9, "how": "nan"}
    trained = train(way, [1.0] * 24, workers, task="Faulty", args=args)
    assert [v.applied for v in trained.verdicts] == [True, True, False, True, True, True]
    if ("D14 bits", way) not in APART:
        assert trained.same_bits(trained), "each worker has what the first one has"


@all_ways("D14 large")
def test_finite_losses_too_large_to_add_in_single_precision_are_not_called_nan(way: str) -> None:
    optimizer = optimizer_of(way, 1e-38)
    trained = train(way, [3e38, 3e38], 2, 2, args={"start": 1.0}, optimizer=optimizer)
    want = 1.0 + expected(way, [[3e38, 3e38]], lr=1e-38)[0]
    assert trained.verdicts[0].applied and trained.path() == pytest.approx([want], rel=1e-2)


def test_a_gradient_that_is_infinite_as_fp16_is_skipped_and_named_so() -> None:
    trained = train("fp16", [3e38, 3e38], 2, 2, args={"start": 1.0})
    assert not trained.verdicts[0].finite and trained.path() == [1.0]


# ---- D16 to D22: buffers, sparse gradients, the loss shown -------------------------------------------


@all_ways("D16")
@WORKERS
def test_batch_norm_statistics_are_the_mean_over_microbatches(way: str, workers: int) -> None:
    if ("D16 many", way) in APART:
        workers = 1
    rows = [0.0, 0.0, 10.0, 10.0, 0.0, 0.0, 10.0, 10.0]
    batch, optimizer = {"size": 8, "microbatch": 2}, optimizer_of(way, 0.0)
    trained = train(way, rows, workers, task="Normed", batch=batch, epochs=10, optimizer=optimizer)
    assert trained.buffer("0.running_mean") == pytest.approx(3.256608, abs=1e-5)


@all_ways("D18")
@WORKERS
def test_repeated_rows_of_a_sparse_gradient_are_summed_and_others_do_not_move(way: str, workers: int) -> None:
    spec = probe([], task="Sparse", batch={"size": 6, "microbatch": 2}, workers={"min": 1, "max": 3})
    spec |= {"task_args": {"ids": [7, 7, 3, 7, 5, 5]}, **fields_of(way)}
    want = torch.zeros(9)
    want[7], want[5], want[3] = -0.5, -2 / 6, -1 / 6
    weight = Together(spec, workers).train().weights[-1]["weight"].reshape(-1)
    assert (weight[want == 0] == 0).all() and (weight[want < 0] < 0).all()
    if way not in MOMENTS:
        factor = 0.7 * 1.9 if way == "DiLoCo" else 1.0
        off = 0.5 / 127 / 2 if "compression_down" in spec else 1e-6  # half a step of int8, for now
        assert torch.allclose(weight, factor * want, atol=off)


@all_ways("D20")
@WORKERS
def test_a_frozen_parameter_does_not_move_and_has_no_state(way: str, workers: int) -> None:
    args = {"sizes": {"w": 1, "f": 3}, "unused": ["f"], "frozen": ["f"], "start": 2.0}
    trained = train(way, [1.0] * 12, workers, args=args, optimizer={"name": "adam"})
    assert (trained.weights[-1]["f"] == 2.0).all() and trained.path()[-1] < 2.0
    assert trained.first.model.space.size == 64, "the place of w alone"


@all_ways("D20 a while")
def test_a_parameter_that_is_left_out_for_a_while_keeps_its_state_also_through_a_checkpoint(
    tmp_path: Path, way: str
) -> None:
    """Frozen from step 6 to 10, saved after step 7, gone on with by others."""
    args = {"sizes": {"w": 1, "p": 1}, "frozen": "p", "first": 20, "last": 39}
    optimizer = optimizer_of(way, 0.1, momentum=0.9)
    spec = spec_of(way, [1.0] * 60, task="Frosty", args=args, optimizer=optimizer)
    disk = Disk(tmp_path, parse_spec(spec))
    undisturbed = Together(spec, 3).train()
    first, second = Together(spec, 3, disk).train(until=7), Together(spec, 2, disk).train()
    for name in ("w", "p"):
        path = undisturbed.path(name)
        assert first.path(name) + second.path(name) == pytest.approx(path, abs=CLOSE)
        assert len(path) == 15 and path[14] < path[10] < path[4]
    still = (first.path("p") + second.path("p"))[4:10]
    assert still == (pytest.approx(still[:1] * 6, abs=CLOSE) if way == "gossip" else still[:1] * 6)
    # it goes on with the momentum, or the moments, that it had: not as the first steps were
    assert abs(undisturbed.path("p")[10] - still[0]) > (0.3 if way not in MOMENTS else 0.0)


@all_ways("D22")
@WORKERS
def test_the_loss_shown_is_the_mean_over_all_samples(way: str, workers: int) -> None:
    rows, batch = [0.0] * 6 + [10.0] * 2, {"size": 8, "microbatch": 2}
    optimizer = optimizer_of(way, 0.0)
    trained = train(way, rows, workers, args={"start": 1.0}, batch=batch, optimizer=optimizer)
    assert [v.loss for v in trained.verdicts] == [2.5]


def test_the_loss_shown_is_the_mean_over_all_samples_of_a_round() -> None:
    rows, strategy = [0.0] * 6 + [10.0] * 2, {"name": "local_sgd", "local_steps": 2}
    sgd = {"name": "sgd", "lr": 0.0}
    trained = train("local_sgd", rows, 2, args={"start": 1.0}, strategy=strategy, optimizer=sgd)
    assert [v.loss for v in trained.verdicts] == [2.5]


# ---- the table ---------------------------------------------------------------------------------------


def test_whatever_a_way_is_excused_from_is_asked_of_the_others() -> None:
    assert {way for _, way in APART} <= WAYS.keys() | COMBINED.keys()
    assert {question for question, _ in APART} <= ASKED | {"B14 parameter", "D14 bits", "D16 many"}
    numbers = {question.split()[0] for question in ASKED}
    assert numbers >= {f"D{n:02}" for n in range(2, 23, 2)}

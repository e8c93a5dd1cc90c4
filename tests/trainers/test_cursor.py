"""What every member knows alike, whoever computed what."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.numerics.cursor import (
    Counts,
    Cursor,
    Evaluation,
    Verdict,
    advance,
    exact_sum,
    merge,
    merge_evaluation,
)

numbers = st.floats(allow_nan=True, allow_infinity=True)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


# ---- sums --------------------------------------------------------------------------------------


@given(st.lists(numbers, max_size=30), st.randoms())
def test_an_exact_sum_does_not_depend_on_the_order(values: list[float], rng: random.Random) -> None:
    mixed = list(values)
    rng.shuffle(mixed)
    assert same(exact_sum(values), exact_sum(mixed))


def test_a_sum_that_overflows_on_the_way_does_so_in_any_order() -> None:
    largest = 1.7976931348623157e308
    for values in itertools.permutations([9.98e291, largest, -5.5e275]):
        assert exact_sum(values) == math.inf
    for values in itertools.permutations([largest, largest, -largest]):
        assert exact_sum(values) == largest


@given(st.lists(st.floats(-1e300, 1e300), max_size=30))
def test_an_exact_sum_is_the_rounded_true_sum(values: list[float]) -> None:
    assert exact_sum(values) == math.fsum(values)


def test_an_exact_sum_knows_what_is_not_finite() -> None:
    assert math.isnan(exact_sum([1.0, math.nan, math.inf]))
    assert exact_sum([1.0, math.inf]) == math.inf
    assert math.isnan(exact_sum([math.inf, -math.inf]))
    assert not math.isfinite(exact_sum([1.7e308, 1.7e308]))


# ---- the commit record -------------------------------------------------------------------------


def entries(
    rows: Sequence[list[Any]], norms: Sequence[float], holders: list[int], world: int
) -> list[dict[str, Any]]:
    return [
        {
            "step": 5,
            "log": rank,
            "used": "3" if rank == 0 else "5",
            "norms": [n for i, n in enumerate(norms) if i % world == rank],
            "microbatches": [
                row for row, holder in zip(rows, holders, strict=True) if holder % world == rank
            ],
        }
        for rank in range(world)
    ]


@given(st.lists(st.tuples(numbers, st.floats(0, 100)), min_size=1, max_size=12), st.data())
def test_the_record_decides_the_same_for_any_number_of_workers(
    losses: list[tuple[float, float]], data: st.DataObject
) -> None:
    rows = [[j, loss, weight, 0.1, f"ids{j}", "-"] for j, (loss, weight) in enumerate(losses)]
    norms = data.draw(st.lists(st.floats(0, 1e300), min_size=1, max_size=9))
    holders = data.draw(st.lists(st.integers(0, 5), min_size=len(rows), max_size=len(rows)))
    alone = merge(entries(rows, norms, holders, 1), ["w0"])
    several = merge(entries(rows, norms, holders, 3), ["w0", "w1", "w2"])
    for name in ("loss", "weight", "norm_sq"):
        assert same(alone[name], several[name])
    assert (alone["ids"], alone["step"], alone["others"]) == (
        several["ids"],
        several["step"],
        several["others"],
    )
    assert several["log"] == 2
    assert several["used"] == "7"
    assert [j for j, _ in several["bad"]] == [
        j for j, (loss, _) in enumerate(losses) if not math.isfinite(loss)
    ]
    assert sum(count for count, _ in several["seconds"].values()) == len(rows)


# ---- the cursor --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 15), max_size=20))
def test_update_counts_are_those_of_each_parameter(masks: list[int]) -> None:
    counts, plain = Counts(), [0, 0, 0, 0]
    for used in masks:
        counts = counts.advance(used, 4)
        plain = [n + (used >> i & 1) for i, n in enumerate(plain)]
        assert [counts.of(i) for i in range(4)] == plain


def test_parameters_that_are_used_alike_need_no_list() -> None:
    counts = Counts()
    for _ in range(3):
        counts = counts.advance(0b1111, 4)
    assert counts == Counts(3, {})


def test_a_cursor_travels_as_json() -> None:
    cursor = Cursor(
        step=4, counts=Counts(3, {"1": 2}), chain="ab", evaluation=Evaluation(2, {"loss": (1.0, 2.0)})
    )
    back = Cursor.from_json(json.loads(json.dumps(cursor.to_json())))
    assert (back.step, back.counts, back.chain) == (4, Counts(3, {"1": 2}), "ab")
    assert back.evaluation is not None
    assert back.evaluation.position == 2
    assert list(back.evaluation.sums["loss"]) == [1.0, 2.0]


def record(loss: float = 2.0, weight: float = 4.0, norm_sq: float = 9.0) -> dict[str, Any]:
    return {"step": 0, "loss": loss, "weight": weight, "norm_sq": norm_sq, "used": "3", "ids": "abc"}


def test_a_step_that_is_not_finite_moves_the_data_but_not_the_updates() -> None:
    bad = record(loss=math.nan)
    moved = advance(Cursor(), bad, Verdict.of(bad, 0.5, None), 2)
    assert (moved.step, moved.updates, moved.skipped, moved.skipped_in_row) == (1, 0, 1, 1)
    good = {**record(), "step": 1}
    moved = advance(moved, good, Verdict.of(good, 0.5, None), 2)
    assert (moved.step, moved.updates, moved.skipped, moved.skipped_in_row) == (2, 1, 1, 0)
    assert moved.counts == Counts(1, {})


def test_a_step_of_no_weight_is_skipped_and_is_no_fault() -> None:
    verdict = Verdict.of(record(weight=0.0, loss=0.0), 0.5, None)
    assert (verdict.applied, verdict.finite) == (False, True)
    moved = advance(Cursor(), record(weight=0.0), verdict, 2)
    assert (moved.skipped, moved.skipped_in_row) == (1, 0)


def test_clipping_is_by_the_norm_of_the_mean_gradient() -> None:
    free = Verdict.of(record(), 0.5, None)
    assert (free.grad_norm, free.factor, free.loss) == (1.5, 0.5, 0.5)
    clipped = Verdict.of(record(), 0.5, 1.0)
    assert clipped.grad_norm == 1.5
    assert math.isclose(clipped.factor, 0.5 / 1.5, rel_tol=1e-5)


def test_the_chain_tells_apart_what_was_computed_in_another_order() -> None:
    def chain(*ids: str) -> str:
        cursor = Cursor()
        for step, name in enumerate(ids):
            now = {**record(), "step": step, "ids": name}
            cursor = advance(cursor, now, Verdict.of(now, 1.0, None), 2)
        return cursor.chain

    assert len({chain("a", "b"), chain("b", "a"), chain("a", "a"), chain("a")}) == 4
    assert chain("a", "b") == chain("a", "b")


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 10)), min_size=1, max_size=12), st.integers(1, 4)
)
def test_an_evaluation_gives_the_same_means_for_any_number_of_workers(
    values: list[tuple[float, float]], world: int
) -> None:
    def evaluate(members: int) -> Cursor:
        cursor = Cursor(step=7)
        rows = [[j, {"loss": list(v)}] for j, v in enumerate(values)]
        for position in range(2):
            given_ = [{"microbatches": rows[r + position :: members]} for r in range(members)]
            taken = rows[position:]
            assert sorted(r[0] for g in given_ for r in g["microbatches"]) == [r[0] for r in taken]
            cursor = merge_evaluation(cursor, given_, 2)
        return cursor

    one, many = evaluate(1), evaluate(world)
    assert one.evaluated_step == many.evaluated_step == 7
    assert same(one.metrics["val_loss"], many.metrics["val_loss"])
    assert many.evaluation is None

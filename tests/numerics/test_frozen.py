"""A job that goes on from another one's checkpoint with other parameters frozen, as in fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastrain.trainers.checkpoints.restore import BadCheckpoint
from elastrain.trainers.spec import parse_spec
from numerics.disk import Disk
from numerics.together import Together
from numerics.ways import adam, spec_of

SIZES = {"a": 3, "b": 1, "c": 2}
ADAM = {"name": "adam", "lr": 0.1}


def job(frozen: list[str], **args: Any) -> dict[str, Any]:
    """Ten steps; the gradient is 1 always."""
    args = {"sizes": SIZES, "frozen": frozen, "unused": frozen, **args}
    return spec_of("all_reduce", [1.0] * 40, args=args, optimizer=ADAM)


def after_five_steps(folder: Path, frozen: list[str]) -> Disk:
    disk = Disk(folder, parse_spec(job(frozen)))
    Together(job(frozen), 2, disk).train(until=5)
    return disk


PATH = adam([[1.0] * 4] * 10, [0.1] * 10)


def test_what_is_frozen_from_now_on_stays_and_the_others_go_on_with_their_state(tmp_path: Path) -> None:
    more = Together(job(["b"]), 3, after_five_steps(tmp_path, [])).train()
    assert [float(w["a"][0]) for w in more.weights] == pytest.approx(PATH[5:], abs=1e-6)
    assert [float(w["c"][1]) for w in more.weights] == pytest.approx(PATH[5:], abs=1e-6)
    assert more.path("b") == pytest.approx([PATH[4]] * 5, abs=1e-6)


def test_what_is_trained_from_now_on_counts_its_own_updates(tmp_path: Path) -> None:
    more = Together(job([]), 3, after_five_steps(tmp_path, ["b"])).train()
    assert more.path("b") == pytest.approx(PATH[:5], abs=1e-6)
    assert [float(w["c"][1]) for w in more.weights] == pytest.approx(PATH[5:], abs=1e-6)
    assert more.first.cursor is not None
    assert [more.first.cursor.counts.of(index) for index in range(3)] == [10, 5, 10]


def test_the_state_of_a_parameter_that_the_model_has_not_is_a_bad_checkpoint(tmp_path: Path) -> None:
    smaller = Together(job([], sizes={"a": 3, "c": 2}), 1, after_five_steps(tmp_path, []))
    with pytest.raises(BadCheckpoint, match="state of b, which this model has not"):
        smaller.train()

"""A worker whose processes have some layers each, as stages of a pipeline. What is alike however a model is
split is in test_split.py."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import harness
from engine.chaos import Chaos
from engine.checks import check, check_nobody_is_left
from engine.harness import Run, finish, kill, once_saved, toy
from engine.test_split import PATIENCE_S, TOLERANCE, kill_shard, text

pytestmark = pytest.mark.engine

run = functools.partial(harness.run, timeout_s=PATIENCE_S)
staged = functools.partial(text, split="pipeline")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One worker of two stages."""
    return run(tmp_path_factory.mktemp("one"), staged())


@pytest.fixture(scope="module")
def unsplit(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("unsplit"), text(1))


def same_but_for_rounding(run: Run, other: Run) -> None:
    for name in ("loss", "grad_norm", "val_loss", "val_accuracy"):
        ours, theirs = run.metric(name), other.metric(name)
        assert ours
        for step, value in ours.items():
            assert value == pytest.approx(theirs[step], rel=TOLERANCE), (name, step)
    for name, value in run.tensors().items():
        torch.testing.assert_close(value, other.tensors()[name], rtol=1e-3, atol=1e-4)


def test_three_stages_with_tied_ends_came_to_the_same_loss_as_an_unsplit_model(
    tmp_path: Path, unsplit: Run
) -> None:
    run_of_three = run(tmp_path, staged(3), 2)
    assert run_of_three.steps() == list(range(1, 31))
    same_but_for_rounding(run_of_three, unsplit)


def test_any_number_of_workers_with_stages_gives_the_same_bits(tmp_path: Path, undisturbed: Run) -> None:
    check(run(tmp_path, staged(), 3), undisturbed)


def test_a_killed_stage_and_a_killed_lead_cost_no_step(tmp_path: Path, undisturbed: Run) -> None:
    died = run(tmp_path, staged(), 3, (7, kill_shard(1)), (16, kill(0)))
    check(died, undisturbed)
    assert len(died.events("worker.lost")) == 2 and not died.events("rollback")


def test_a_stage_that_died_in_the_middle_of_the_schedule_took_its_worker_along(
    tmp_path: Path, undisturbed: Run
) -> None:
    """The first stage waits for it then, in what nothing wakes."""
    died = run(tmp_path / "run", staged(task_args={"dies": [41, str(tmp_path / "dead")]}), 2)
    check(died, undisturbed)
    assert [e["data"]["cause"] for e in died.events("worker.exited")] == ["signal 9 (SIGKILL)"]


def test_stages_under_fire_until_the_end_changed_nothing(tmp_path: Path) -> None:
    spec = staged(steps=40, task_args={"dropout": 0.1})
    chaos = Chaos(tmp_path / "many", spec, (1, 4), seed=6).go(PATIENCE_S)
    check(chaos, run(tmp_path / "one", spec))
    assert chaos.counts.total() > 0  # on a machine that is busy it may be all stops and no kill


def test_dropout_and_running_statistics_in_bf16_gave_the_same_bits_through_a_death(tmp_path: Path) -> None:
    """Each stage counts batches, which all processes have to know, and the lead of each worker to save."""
    spec = toy(
        task="elastrain.trainers.tasks.digits:Digits",
        task_args={"hidden": 32, "layers": 2, "dropout": 0.1, "batch_norm": True},
        precision="bf16",
        batch={"size": 64, "microbatch": 16},
        workers={"min": 1, "max": 4, "processes": 2, "split": "pipeline"},
        optimizer={"name": "adamw", "lr": 1e-2},
        steps=12,
        evaluate={"every_steps": 8, "at_end": True},
    )
    alone = run(tmp_path / "alone", spec)
    check(run(tmp_path / "two", spec, 2, (5, kill_shard(0))), alone)
    counts = {n: int(v) for n, v in alone.tensors().items() if n.endswith("num_batches_tracked")}
    assert counts == {"1.num_batches_tracked": 12, "5.num_batches_tracked": 12}
    assert alone.metric("loss")[12] < 0.95 * alone.metric("loss")[1]
    assert set(alone.metric("val_accuracy")) == {8, 12}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, "pipeline"), (2, "pipeline")),
        ((2, "pipeline"), (3, "pipeline")),
        ((2, "pipeline"), (2, "fully_shard")),
    ],
)
def test_a_checkpoint_goes_from_stages_to_any_other_way(
    tmp_path: Path, unsplit: Run, before: tuple[int, str], after: tuple[int, str]
) -> None:
    run(tmp_path, text(*before), 2, (11, once_saved(10, finish("paused"))))
    saved = {f["name"]: f for f in unsplit.manifest(10)["params"]}
    resumed = run(tmp_path, text(*after), 2, number=2)
    assert resumed.steps() == list(range(resumed.steps()[0], 31)) and 11 < resumed.steps()[0] < 30
    assert {f["name"]: f for f in resumed.manifest()["params"]} == saved
    same_but_for_rounding(resumed, unsplit)


def test_what_the_last_stage_raised_is_told_in_the_users_own_lines(tmp_path: Path) -> None:
    failed = run(tmp_path, staged(task_args={"poison": 41}, steps=20), 2)
    assert failed.outcome is not None and failed.outcome.failed_by == "user"
    message = failed.outcome.message or ""
    assert "RuntimeError: sample 41 is poisoned (language.py:" in message and "stage" not in message.lower()
    check_nobody_is_left(failed)


def test_more_stages_than_parts_are_refused_with_what_to_do(tmp_path: Path) -> None:
    workers: dict[str, Any] = {"min": 1, "max": 2, "processes": 5, "split": "pipeline"}
    failed = run(tmp_path, toy(workers=workers), 1)
    assert failed.outcome is not None and failed.outcome.failed_by == "user"
    assert "needs 5 parts with trainable parameters, and the model has 4" in (failed.outcome.message or "")

"""Ending on request, in any phase: a checkpoint at the step reached, and nothing is repeated afterwards."""

from pathlib import Path

import pytest

from engine.harness import Run, finish, run, toy

pytestmark = pytest.mark.engine


def test_a_stop_before_the_first_step_has_nothing_to_save(tmp_path: Path) -> None:
    early = Run(tmp_path, toy(), (1, 2))
    early.on_fact = lambda fact: early.soon(finish("paused")) if fact["kind"] == "progress" else None
    early.go()
    assert early.outcome is not None
    assert (early.outcome.outcome, early.outcome.step) == ("paused", 0)
    assert run(tmp_path, toy(), 1, number=2).steps() == list(range(1, 41))


def test_a_stop_in_an_evaluation_keeps_the_step(tmp_path: Path) -> None:
    spec = toy(evaluate={"every_steps": 10}, checkpoint={"every_steps": None}, task_args={"sleep_s": 0.01})
    alone = run(tmp_path / "one", spec)
    stopped = run(tmp_path / "two", spec, 2, (10, finish("preempted")))
    assert stopped.outcome is not None and stopped.outcome.outcome == "preempted"
    at = stopped.outcome.step
    assert stopped.attempt.checkpoints.steps() == [at] and at >= 10
    rest = run(tmp_path / "two", spec, 3, number=2)
    assert rest.steps() == list(range(at + 1, 41)) and rest.digests == alone.digests
    both = {**stopped.metric("val_loss"), **rest.metric("val_loss")}
    assert both == alone.metric("val_loss")


def test_a_stop_in_training_keeps_the_step(tmp_path: Path) -> None:
    stopped = run(tmp_path, toy(checkpoint={"every_steps": None}), 2, (17, finish("paused")))
    assert stopped.outcome is not None
    assert stopped.attempt.checkpoints.steps() == [stopped.outcome.step]
    assert run(tmp_path, toy(), 2, number=2).steps()[0] == stopped.outcome.step + 1


def test_a_cancel_ends_at_once_without_a_checkpoint(tmp_path: Path) -> None:
    cancelled = run(tmp_path, toy(checkpoint={"every_steps": None}, steps=5000), 2, (10, finish("cancelled")))
    assert cancelled.outcome is not None and cancelled.outcome.outcome == "cancelled"
    assert cancelled.attempt.checkpoints.steps() == []
    assert all(w["state"] == "ended" for w in {f["id"]: f for f in cancelled.of_kind("worker")}.values())

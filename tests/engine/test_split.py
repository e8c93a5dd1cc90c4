"""A worker of several processes, among which its model is split: it lives, computes and dies as one."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from engine import harness
from engine.chaos import Chaos
from engine.checks import GONE_S, check, check_nobody_is_left
from engine.harness import Fault, Run, finish, kill, once_saved, scale, toy

pytestmark = pytest.mark.engine
PATIENCE_S = 300.0  # with ten workers of two processes, one after the other
OWN_TASK = Path(__file__).resolve().parents[2] / "examples/own_task"
TOLERANCE = 1e-4  # of the loss, relative: what another order of additions in fp32 makes of 30 steps


run = functools.partial(harness.run, timeout_s=PATIENCE_S)


def text(processes: int = 2, split: str = "fully_shard", **fields: Any) -> dict[str, Any]:
    """A transformer; microbatches of 3 samples, which 2 processes cannot share equally; the epoch's last one
    has a single sample, of which one process gets nothing."""
    workers = {"min": 1, "max": 6, "processes": processes, "split": split}
    return {
        "name": "text",
        "task": "engine.tasks.language:Text",
        "optimizer": {"name": "adamw", "lr": 3e-3, "weight_decay": 0.01, "weight_decay_1d": False},
        "clip_norm": 1.0,
        "batch": {"size": 18, "microbatch": 3},
        "steps": 30,
        "workers": workers,
        "checkpoint": {"every_steps": 10},
        "evaluate": {"every_steps": 12, "at_end": True},
        **fields,
    }


def shards(run: Run, worker: str) -> list[psutil.Process]:
    """Its processes but the lead, by number."""
    return psutil.Process(run.launcher.pid(worker)).children()


def kill_shard(rank: int) -> Fault:
    """SIGKILL a shard of the worker that has this rank now."""
    return lambda run: os.kill(shards(run, run.active()[rank])[0].pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One worker of two processes."""
    return run(tmp_path_factory.mktemp("one"), text())


@pytest.fixture(scope="module")
def by_plan(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same, its layers cut by a tensor-parallel plan."""
    return run(tmp_path_factory.mktemp("plan"), text(split="tensor"))


@pytest.fixture(scope="module")
def unsplit(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("unsplit"), text(1))


@pytest.mark.parametrize("how", ["fully_shard", "tensor", "pipeline"])
def test_two_workers_of_two_processes_came_to_the_same_loss_as_an_unsplit_model(
    tmp_path: Path, unsplit: Run, how: str
) -> None:
    split = run(tmp_path, text(split=how), 2)
    assert split.outcome is not None and split.outcome.outcome == "succeeded"
    for name in ("loss", "grad_norm", "val_loss"):
        ours, theirs = split.metric(name), unsplit.metric(name)
        assert ours.keys() == theirs.keys() and ours
        for step, value in ours.items():
            assert value == pytest.approx(theirs[step], rel=TOLERANCE), (name, step)
    assert split.metric("loss")[30] < 0.8 * split.metric("loss")[1]
    for name, value in split.tensors().items():
        torch.testing.assert_close(value, unsplit.tensors()[name], rtol=1e-3, atol=1e-4)
    check_nobody_is_left(split)


def test_any_number_of_split_workers_gives_the_same_bits(tmp_path: Path, undisturbed: Run) -> None:
    check(run(tmp_path, text(), 3), undisturbed)


def test_a_killed_shard_took_its_worker_along_and_nobody_else(tmp_path: Path, undisturbed: Run) -> None:
    died = run(tmp_path, text(), 2, (7, kill_shard(1)))
    check(died, undisturbed)
    assert [e["data"]["cause"] for e in died.events("worker.exited")] == ["signal 9 (SIGKILL)"]
    assert len(died.events("worker.lost")) == 1 and not died.events("rollback")


def test_layers_that_were_cut_by_a_plan_gave_the_same_bits_through_deaths(
    tmp_path: Path, by_plan: Run
) -> None:
    died = run(tmp_path, text(split="tensor"), 2, (7, kill_shard(1)), (16, kill(0)))
    check(died, by_plan)
    assert len(died.events("worker.lost")) == 2


def test_the_example_with_a_plan_lost_a_process_and_ended_as_if_it_had_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(OWN_TASK)  # workers look for modules where we do
    spec = yaml.safe_load((OWN_TASK / "split-tensor.yaml").read_text()) | {"epochs": 1}
    died = run(tmp_path / "died", spec, 2, (7, kill_shard(1)))
    check(died, run(tmp_path / "alone", spec))
    assert len(died.events("worker.lost")) == 1 and died.metric("loss")[24] < died.metric("loss")[1]


def test_a_task_without_a_plan_is_told_what_it_lacks(tmp_path: Path) -> None:
    workers = {"min": 1, "max": 2, "processes": 2, "split": "tensor"}
    failed = run(tmp_path, toy(workers=workers), 1)
    assert failed.outcome is not None and failed.outcome.failed_by == "user"
    assert "Toy does not say how its layers are cut: define tensor_plan(self)" in (
        failed.outcome.message or ""
    )


def test_a_killed_lead_left_no_shard_behind(tmp_path: Path, undisturbed: Run) -> None:
    of_the_dead: list[psutil.Process] = []

    def remember_and_kill(run: Run) -> None:
        of_the_dead.extend(shards(run, run.active()[0]))
        kill(0)(run)

    died = run(tmp_path, text(), 3, (7, remember_and_kill), (16, kill_shard(0)))
    check(died, undisturbed)
    assert len(of_the_dead) == 1
    assert psutil.wait_procs(of_the_dead, timeout=GONE_S)[1] == []
    assert len(died.events("worker.lost")) == 2


def test_split_workers_joined_and_left_and_nothing_was_lost(tmp_path: Path, undisturbed: Run) -> None:
    changed = run(tmp_path, text(), 1, (5, scale(1, 3)), (12, scale(1, 1)), (20, scale(1, 2)))
    check(changed, undisturbed)
    assert changed.events("worker.left") and not changed.events("worker.lost")


def test_a_split_job_under_fire_until_the_end_changed_nothing(tmp_path: Path) -> None:
    spec = text(steps=60, task_args={"dropout": 0.1})
    chaos = Chaos(tmp_path / "many", spec, (1, 4), seed=5).go(PATIENCE_S)
    check(chaos, run(tmp_path / "one", spec))
    assert chaos.counts["kills"] > 0


def test_all_processes_died_and_others_went_on_from_the_newest_checkpoint(
    tmp_path: Path, undisturbed: Run
) -> None:
    both = run(tmp_path, text(), 2, (14, kill_shard(0)), (14, kill(1)))
    check(both, undisturbed)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_a_checkpoint_is_the_same_however_the_model_was_split(
    tmp_path: Path, unsplit: Run, before: int, after: int
) -> None:
    run(tmp_path, text(before), 2, (11, once_saved(10, finish("paused"))))
    saved = {f["name"]: f for f in unsplit.manifest(10)["params"]}
    resumed = run(tmp_path, text(after), 2, number=2)
    assert resumed.steps() == list(range(resumed.steps()[0], 31)) and 11 < resumed.steps()[0] < 30
    assert {f["name"]: f for f in resumed.manifest()["params"]} == saved
    for step in resumed.steps():
        assert resumed.metric("loss")[step] == pytest.approx(unsplit.metric("loss")[step], rel=TOLERANCE)
    for name, value in resumed.tensors().items():
        torch.testing.assert_close(value, unsplit.tensors()[name], rtol=1e-3, atol=1e-4)


def test_what_one_process_raises_is_told_as_the_users_fault(tmp_path: Path) -> None:
    spec = text(task_args={"poison": 41}, steps=20)
    failed = run(tmp_path, spec, 2)
    assert failed.outcome is not None and failed.outcome.outcome == "failed"
    assert "sample 41 is poisoned" in (failed.outcome.message or "") and failed.outcome.failed_by == "user"
    check_nobody_is_left(failed)


def large(processes: int, room: float) -> dict[str, Any]:
    """Eight microbatches a step: their sums on the way up the tree make a step the moment that takes most."""
    return {
        "name": "large",
        "task": "engine.tasks.large:Large",
        "task_args": {"room": room},
        "optimizer": {"name": "adam", "lr": 1e-4},
        "batch": {"size": 32, "microbatch": 4},
        "steps": 2,  # the second one has all of the optimizer's state
        "workers": {"min": 1, "max": 1, "processes": processes},
        "checkpoint": {"every_steps": None},
    }


def test_a_model_that_one_process_has_no_memory_to_train_is_trained_by_two(tmp_path: Path) -> None:
    room = 8.5  # one process takes more than 9; of two, the one that writes the whole model down, less than 8
    one = run(tmp_path / "one", large(1, room))
    assert one.outcome is not None and one.outcome.outcome == "failed"
    assert "Cannot allocate memory" in (one.outcome.message or "") and one.steps() == []
    two, unlimited = run(tmp_path / "two", large(2, room)), run(tmp_path / "unlimited", large(1, 0))
    assert two.outcome is not None and two.outcome.outcome == "succeeded", two.outcome
    assert not two.events("worker.error") and not two.events("checkpoint.failed")
    assert two.steps() == [1, 2] and two.metric("loss")[2] < two.metric("loss")[1]
    assert two.metric("loss") == pytest.approx(unlimited.metric("loss"), rel=TOLERANCE)
    check_nobody_is_left(two)

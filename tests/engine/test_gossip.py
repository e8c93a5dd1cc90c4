"""Gossip on real processes: workers die, join and leave, and it comes to the optimum all the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.harness import Run, finish, kill, run, scale, toy

pytestmark = pytest.mark.engine
ROWS = [float(i) for i in range(16)]
OPTIMUM = 7.5


def convex(graph: str = "ring", **fields: Any) -> dict[str, Any]:
    """Each step sees all samples, and every worker other ones."""
    return {
        "name": "convex",
        "task": "engine.tasks.convex:Convex",
        "task_args": {"rows": ROWS, "sleep_s": 0.01},
        "strategy": {"name": "gossip", "graph": graph},
        "optimizer": {"name": "sgd", "lr": 0.4},
        "schedule": {"decay": "cosine"},
        "batch": {"size": 16, "microbatch": 2},
        "steps": 60,
        "workers": {"min": 1, "max": 4},
        "checkpoint": {"every_steps": 20},
        **fields,
    }


def solved(run: Run) -> None:
    assert run.outcome is not None and run.outcome.outcome == "succeeded", run.outcome
    assert torch.allclose(run.tensors()["w"], torch.full((70,), OPTIMUM), atol=0.05)
    assert run.steps()[-1] == 60 and sorted(set(run.steps())) == run.steps()


@pytest.mark.parametrize("graph", ["ring", "exponential"])
def test_a_kill_a_leave_and_a_join_in_the_middle_and_it_comes_to_the_optimum(
    tmp_path: Path, graph: str
) -> None:
    disturbed = run(
        tmp_path, convex(graph), 4, (10, kill(1)), (20, scale(1, 2)), (30, scale(1, 3)), (40, kill(0))
    )
    solved(disturbed)
    assert len(disturbed.events("worker.lost")) >= 2 and disturbed.events("worker.left")
    assert not disturbed.events("rollback")
    apart = disturbed.metric("consensus_distance")
    assert set(apart) == {20, 40, 60} and 0 < apart[60] < apart[20]
    assert set(disturbed.metric("neighbour_distance")) == set(range(1, 61))


def test_one_worker_alone_is_plain_descent(tmp_path: Path) -> None:
    alone = run(tmp_path, convex(), 1)
    solved(alone)
    assert set(alone.metric("neighbour_distance").values()) == {0.0}


def test_a_resume_begins_with_everybody_at_the_mean_that_was_saved(tmp_path: Path) -> None:
    paused = run(tmp_path, convex(), 3, (25, finish("paused")))
    assert paused.outcome is not None and paused.outcome.outcome == "paused"
    at = paused.manifest()["step"]
    resumed = run(tmp_path, convex(), 2, number=2)
    solved_here = resumed.metric("neighbour_distance")
    assert solved_here[at + 1] == 0.0 and solved_here[at + 5] > 0.0
    assert resumed.outcome is not None and resumed.outcome.outcome == "succeeded"
    assert torch.allclose(resumed.tensors()["w"], torch.full((70,), OPTIMUM), atol=0.05)


def test_all_workers_are_killed_and_it_goes_on_from_the_mean_that_was_saved(tmp_path: Path) -> None:
    def kill_all(run: Run) -> None:
        for rank in range(len(run.active())):
            kill(rank)(run)

    killed = run(tmp_path, convex(), 2, (35, kill_all))
    assert killed.events("rollback") and killed.outcome is not None
    assert killed.outcome.outcome == "succeeded"
    assert torch.allclose(killed.tensors()["w"], torch.full((70,), OPTIMUM), atol=0.05)


def test_a_network_with_batchnorm_and_adam_learns_and_the_mean_is_evaluated(tmp_path: Path) -> None:
    spec = toy(strategy={"name": "gossip", "graph": "torus"}, steps=80, evaluate={"every_steps": 40})
    learned = run(tmp_path, spec, 4, (20, kill(2)))
    assert learned.outcome is not None and learned.outcome.outcome == "succeeded"
    loss = learned.metric("val_loss")
    assert set(loss) == {40, 80} and loss[80] < loss[40] < 1.1
    assert learned.metric("loss")[80] < learned.metric("loss")[1]

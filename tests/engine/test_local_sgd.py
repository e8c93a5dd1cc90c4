"""local_sgd under change: the replicas are the spec's, the workers only compute them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.chaos import Chaos
from engine.checks import check, logs_of
from engine.harness import Run, finish, kill, once_saved, probe, run, scale, toy

pytestmark = pytest.mark.engine
DILOCO = {"name": "local_sgd", "local_steps": 3, "outer": "diloco"}
MOMENTUM = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}


def rounds(**fields: Any) -> dict[str, Any]:
    """Rounds of 192 samples: two in an epoch of 300, the second one short."""
    return toy(
        **{
            "strategy": DILOCO,
            "optimizer": MOMENTUM,
            "steps": 20,
            "checkpoint": {"every_steps": 5},
            "evaluate": {"every_steps": 8, "at_end": True},
            **fields,
        }
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("one"), rounds())


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(tmp_path: Path, undisturbed: Run, workers: int) -> None:
    check(run(tmp_path, rounds(), workers), undisturbed)


def test_workers_that_died_left_and_joined_within_rounds_changed_nothing(
    tmp_path: Path, undisturbed: Run
) -> None:
    changes = [(4, kill(1)), (8, scale(1, 2)), (11, scale(1, 4)), (15, kill(0))]
    changed = run(tmp_path, rounds(), 3, *changes)
    check(changed, undisturbed)
    assert len(changed.events("worker.lost")) == 2 and changed.events("worker.left")
    assert not changed.events("rollback")


def test_rounds_under_fire_until_the_last_one_changed_nothing(tmp_path: Path) -> None:
    spec = rounds(steps=30)
    chaos = Chaos(tmp_path / "many", spec, (1, 4), seed=3).go()
    check(chaos, run(tmp_path / "one", spec))
    assert chaos.counts["kills"] > 0


def test_averaged_adam_state_survives_kills_as_well(tmp_path: Path) -> None:
    strategy = {"name": "local_sgd", "local_steps": 2, "replicas": 4}
    adam: dict[str, Any] = {"optimizer": {"name": "adamw", "lr": 1e-3}, "clip_norm": 0.5, "precision": "bf16"}
    spec = rounds(strategy=strategy, workers={"min": 1, "max": 4}, **adam)
    check(run(tmp_path / "three", spec, 3, (6, kill(0)), (13, kill(1))), run(tmp_path / "one", spec))


def test_a_lost_worker_costs_its_own_inner_steps_and_no_others(tmp_path: Path) -> None:
    spec = rounds(
        task="engine.tasks.witness:Witness", task_args={"sleep_s": 0.01}, evaluate={"at_end": False}
    )
    killed = run(tmp_path, spec, 3, (7, kill(1)))
    lost = [e["data"] for e in killed.events("worker.lost")]
    assert len(lost) == 1 and 0 <= lost[0]["inner_steps"] <= 3 * 8, lost
    read = [line for log in logs_of(killed) for line in log.splitlines() if line.startswith("read ")]
    samples = sum(len(line.split()) - 1 for line in read)
    wasted = samples - killed.manifest()["samples_seen"]
    assert 0 <= wasted <= 8 * lost[0]["inner_steps"], (wasted, lost)  # 8 samples in an inner step


def test_the_event_says_how_many_inner_steps_were_lost(tmp_path: Path) -> None:
    """Replica 1 reads samples 4 to 7 in the first round and 12 to 15 in the second, one in each step."""
    args = {"sample": 14, "how": "vanish", "once": str(tmp_path / "once")}
    strategy = {"name": "local_sgd", "local_steps": 4}
    spec = probe([1.0] * 32, task="Faulty", args=args, strategy=strategy)
    died = run(tmp_path, spec, 2)
    [lost] = died.events("worker.lost")
    assert lost["data"]["inner_steps"] == 3 and "at most 3 inner steps" in lost["message"]
    assert died.steps() == [1, 2, 3, 4]
    assert float(died.tensors()["w"]) == -16.0  # 4 rounds of 4 inner steps, lr 1


@pytest.mark.parametrize("local_steps", [1, 2])
def test_inner_moments_come_back_on_a_resume_at_another_size(tmp_path: Path, local_steps: int) -> None:
    # Case C07: replicas that see the same gradients are one Adam, update by update.
    gradients = [1.0] * 6 + [0.1] * 6
    per_round = 2 * local_steps
    rows = [g for at in range(0, 12, local_steps) for _ in range(2) for g in gradients[at : at + local_steps]]
    strategy = {"name": "local_sgd", "local_steps": local_steps, "outer": {"momentum": 0.0}}
    spec = probe(
        rows,
        strategy=strategy,
        optimizer={"name": "adam", "lr": 0.1},
        checkpoint={"every_steps": 1, "keep": 20},
    )
    assert len(rows) % per_round == 0
    pause = 6 // local_steps - 1
    run(tmp_path, spec, 2, (pause, once_saved(pause, finish("paused"))))
    resumed = run(tmp_path, spec, 1, number=2)
    expected, w, m, v = [], 0.0, 0.0, 0.0
    for t, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w -= 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
        expected.append(w)
    for step in range(pause + 1, 12 // local_steps + 1):
        assert float(resumed.tensors(step)["w"]) == pytest.approx(expected[step * local_steps - 1], abs=1e-5)


def test_a_paused_job_goes_on_with_the_same_outer_momentum(tmp_path: Path, undisturbed: Run) -> None:
    run(tmp_path, rounds(), 2, (7, finish("paused")))
    resumed = run(tmp_path, rounds(), 3, number=2)
    assert resumed.digests == undisturbed.digests
    assert resumed.manifest()["samples_seen"] == 20 // 2 * 300
    assert resumed.metric("val_loss")[20] == undisturbed.metric("val_loss")[20]

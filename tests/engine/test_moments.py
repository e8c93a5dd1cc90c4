"""Distributed Adam by moments: never left unsynchronized, whoever comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.harness import finish, kill, probe, run, scale, toy

pytestmark = pytest.mark.engine
AMSGRAD = {"name": "adam", "lr": 1e-3, "amsgrad": True, "weight_decay": 0.01}


def moments(**fields: Any) -> dict[str, Any]:
    return toy(aggregate="moments", clip_norm=0.5, **fields)


def test_moments_are_the_same_after_every_change_of_members_and_for_any_number_of_workers(
    tmp_path: Path,
) -> None:
    alone = run(tmp_path / "one", moments())
    assert run(tmp_path / "two", moments(), 2).digests == alone.digests
    # a death, one who leaves, one who joins, a second death: each in the middle of training
    changes = [(6, kill(1)), (14, scale(1, 2)), (22, scale(1, 3)), (31, kill(0))]
    changed = run(tmp_path / "three", moments(), 3, *changes)
    assert changed.digests == alone.digests, "state_digest covers every first and second moment"
    assert len(changed.events("worker.lost")) == 2 and changed.events("worker.left")
    assert changed.steps() == list(range(1, 41)) and not changed.events("rollback")
    assert changed.metric("loss") == alone.metric("loss")


def test_servers_that_keep_the_moments_have_the_same_bits_also_after_deaths(tmp_path: Path) -> None:
    strategy = {"name": "parameter_server", "staleness": 0, "servers": 2}  # which have the first ranks
    alone = run(tmp_path / "one", moments(steps=20))
    spec = moments(steps=20, strategy=strategy, task_args={"sleep_s": 0.02})
    served = run(tmp_path / "served", spec, 2, (5, kill(2)), (12, kill(0)))
    assert served.digests == alone.digests
    assert len(served.events("worker.lost")) == 2


def test_amsgrad_and_bf16_keep_their_bits_as_well(tmp_path: Path) -> None:
    spec = moments(optimizer=AMSGRAD, precision="bf16", steps=16)
    alone = run(tmp_path / "one", spec)
    assert run(tmp_path / "three", spec, 3, (5, kill(0)), (9, kill(1))).digests == alone.digests


def test_moments_come_back_on_a_resume_at_another_size(tmp_path: Path) -> None:
    # Case C07.
    rows = [1.0] * 10 + [0.1] * 6
    spec = probe(
        rows,
        optimizer={"name": "adam", "lr": 0.1},
        aggregate="moments",
        checkpoint={"every_steps": 1, "keep": 9},
    )
    run(tmp_path, spec, 2, (5, finish("paused")))
    resumed = run(tmp_path, spec, 1, number=2)
    values = [float(resumed.tensors(step)["w"]) for step in (6, 7, 8)]
    assert values == pytest.approx([-0.588437, -0.667857, -0.740016], abs=1e-5)

"""An order that is to be repeated: read from the checkpoint that is meant, and refused if it does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from elastrain.trainers.spec import JobSpec, parse_spec
from elastrain.trainers.storage import Storage, open_storage
from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.orders import order_to_repeat
from elastrain.trainers.training.faults import UserFault


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path.as_uri(), {})


def repeats(replay: str | None = "j", staleness: int | None = None) -> JobSpec:
    strategy = {"name": "parameter_server", "staleness": staleness, "replay": replay}
    return parse_spec({"name": "x", "task": "a:B", "epochs": 1, "strategy": strategy})


def saved(storage: Storage, step: int, order: list[tuple[int, int]] | None, rollbacks: int = 0) -> None:
    folder = f"jobs/j/checkpoints/{step:010d}"
    manifest = {"step": step, "cursor": {"rollbacks": rollbacks}}
    storage.put(f"{folder}/manifest.json", json.dumps(manifest).encode())
    if order is not None:
        storage.put(f"{folder}/order.safetensors", save({"order": torch.tensor(order)}))


def test_the_newest_order_or_that_of_a_step_is_repeated(storage: Storage) -> None:
    saved(storage, 2, [(1, 0), (0, 0)])
    saved(storage, 3, [(1, 0), (0, 0), (2, 1)])
    assert order_to_repeat(storage, repeats(), 3) == [Task(1, 0), Task(0, 0), Task(2, 1)]
    assert order_to_repeat(storage, repeats("j@2"), 2) == [Task(1, 0), Task(0, 0)]
    assert order_to_repeat(storage, repeats(None), 5) is None


@pytest.mark.parametrize(
    ("order", "total", "bound", "told"),
    [
        ([(0, 0), (1, 1)], 1, None, "has step 1, and this job has 1 steps"),
        ([(0, 0), (2, 0)], 2, None, "has step 2, and this job has 2 steps"),
        ([(0, 0), (1, 0), (2, 0)], 3, 1, "a push is 2 versions behind, and strategy.staleness is 1"),
        (None, 2, None, "has no order"),
    ],
    ids=["longer", "ahead of itself", "staler than allowed", "of a synchronous run"],
)
def test_an_order_that_does_not_fit_is_refused_before_anybody_waits_for_its_end(
    storage: Storage, order: Any, total: int, bound: int | None, told: str
) -> None:
    saved(storage, len(order or (0, 0)), order)
    with pytest.raises(UserFault, match=told) as refused:
        order_to_repeat(storage, repeats(staleness=bound), total)
    assert refused.value.fault.phase == "verdict"


def test_a_run_whose_rate_was_lowered_on_its_way_is_not_repeated_at_another(storage: Storage) -> None:
    saved(storage, 2, [(0, 0), (1, 1)], rollbacks=1)
    with pytest.raises(UserFault, match="was rolled back 1 times"):
        order_to_repeat(storage, repeats(), 2)


def test_a_job_without_a_checkpoint_has_nothing_to_repeat(storage: Storage) -> None:
    with pytest.raises(UserFault, match="that job has no checkpoint"):
        order_to_repeat(storage, repeats(), 7)

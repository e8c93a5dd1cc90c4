"""Jobs with servers, and what must hold of an asynchronous one."""

from __future__ import annotations

from typing import Any

import pytest
from safetensors.torch import load_file

from engine.checks import check_nobody_is_left
from engine.harness import Fault, Run, kill, toy

SERVERS = 2  # they have the first ranks


def served(staleness: int | None = 0, servers: int = SERVERS, **fields: Any) -> dict[str, Any]:
    strategy = {"name": "parameter_server", "staleness": staleness, "servers": servers}
    return toy(strategy=strategy | fields.pop("strategy", {}), **fields)


def kill_worker(number: int) -> Fault:
    return kill(SERVERS + number)


def order_of(run: Run, step: int = 40) -> list[list[int]]:
    file = run.folder / f"objects/jobs/{run.job}/checkpoints/{step:010d}" / "order.safetensors"
    orders: list[list[int]] = load_file(file)["order"].tolist()
    return orders


def check_asynchronous(done: Run) -> None:
    assert done.outcome is not None and done.outcome.outcome == "succeeded"
    assert done.steps() == list(range(1, 41))
    order = order_of(done)
    assert sorted(step for step, _ in order) == list(range(40)), "each step counts once"
    staleness = {n + 1: float(n - version) for n, (_, version) in enumerate(order)}
    assert done.metric("staleness") == staleness
    assert done.metric("staleness_max")[40] == max(staleness.values())
    assert done.metric("staleness_mean")[40] == pytest.approx(sum(staleness.values()) / 40, abs=1e-3)
    check_nobody_is_left(done)

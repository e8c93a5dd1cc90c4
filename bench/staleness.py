"""When does staleness hurt? Trains one task with every push a fixed number of versions behind.

    python bench/staleness.py [--plot docs/staleness.svg]

Each run repeats an order that is written beforehand (strategy.replay): step s is computed from the
parameters of version s - staleness. So the result depends on the staleness alone, not on how fast this
machine is. The last line is one JSON object: {way: {staleness: validation loss after the last step}}.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from elastrain.trainers.coordination.attempt import Attempt
from elastrain.trainers.launching.local_launcher import LocalLauncher
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import open_storage
from elastrain.trainers.strategies.ledger import ORDER

STEPS = 200
STALENESS = (0, 1, 2, 4, 8, 16)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"scale_by_staleness": False},
    "delay compensated": {"scale_by_staleness": False, "compensation": 2.0},
    "rate divided by staleness": {},
}
SPEC: dict[str, Any] = {
    "name": "staleness",
    "task": "elastrain.trainers.tasks.digits:Digits",
    "task_args": {"channels": 8, "hidden": 32, "dropout": 0.0, "batch_norm": False},
    "optimizer": {"name": "sgd", "lr": 0.15},
    "batch": {"size": 64, "microbatch": 64},
    "steps": STEPS,
    "workers": {"min": 1, "max": 1},
    "checkpoint": {"every_steps": None},
}


def train(strategy: dict[str, Any], staleness: int) -> float:
    """The validation loss after the last step."""
    metrics: dict[str, float] = {}
    strategy = {"name": "parameter_server", "staleness": None, "servers": 1, "replay": "written", **strategy}
    with tempfile.TemporaryDirectory(prefix="staleness-") as name:
        folder = Path(name)
        write_order(folder / f"objects/jobs/written/checkpoints/{STEPS:010d}", staleness)
        attempt = Attempt(
            spec=parse_spec({**SPEC, "strategy": strategy}),
            job="staleness",
            attempt=1,
            storage=open_storage((folder / "objects").as_uri()),
            launcher=LocalLauncher(folder),
            sink=lambda fact: metrics.update(fact["values"] if fact["kind"] == "metric" else {}),
        )
        outcome = asyncio.run(attempt.run())
    if outcome.outcome != "succeeded":
        return float("inf")  # it diverged until no step was finite
    assert metrics["staleness_max"] == min(staleness, STEPS - 1)
    return metrics["val_loss"]


def write_order(folder: Path, staleness: int) -> None:
    """As an asynchronous run would have left it."""
    folder.mkdir(parents=True)
    order = torch.tensor([(step, max(0, step - staleness)) for step in range(STEPS)], dtype=torch.int64)
    data = save({"order": order})
    (folder / ORDER).write_bytes(data)
    files = [{"name": ORDER, "sha256": hashlib.sha256(data).hexdigest()}]
    (folder / "manifest.json").write_text(json.dumps({"step": STEPS, "cursor": {}, "files": files}))


def plot(found: dict[str, dict[int, float]], file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5))
    for way, losses in found.items():
        axes.plot(range(len(losses)), list(losses.values()), marker="o", label=way)
    axes.set_xticks(range(len(STALENESS)), [str(n) for n in STALENESS])
    axes.set_yscale("log")
    axes.set_xlabel("staleness of every push (versions)")
    axes.set_ylabel(f"validation loss after {STEPS} steps")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--plot", type=Path, help="where to draw it (needs matplotlib)")
    given = arguments.parse_args()
    found: dict[str, dict[int, float]] = {}
    for way, strategy in WAYS.items():
        found[way] = {staleness: train(strategy, staleness) for staleness in STALENESS}
        row = "  ".join(f"{n}: {loss:.4f}" for n, loss in found[way].items())
        print(f"{way:28} {row}", flush=True)
    if given.plot is not None:
        plot(found, given.plot)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""The order of an earlier asynchronous run, to be repeated: read from the newest checkpoint of its job."""

from __future__ import annotations

import json
from collections.abc import Sequence

from safetensors.torch import load

from elastrain.trainers.spec import JobSpec, Source
from elastrain.trainers.spec.strategies import ParameterServer
from elastrain.trainers.storage import NotFound, Storage
from elastrain.trainers.strategies.ledger import ORDER, Task
from elastrain.trainers.training.faults import refuse


def order_to_repeat(storage: Storage, spec: JobSpec, total: int) -> list[Task] | None:
    """None: there is none, the order is that of arrival. total: steps of this job. Raises UserFault if it is
    not there, or this job cannot begin with it."""
    assert isinstance(spec.strategy, ParameterServer)
    if spec.strategy.replay is None:
        return None
    source = Source.parse(spec.strategy.replay)
    root = f"jobs/{source.job}/checkpoints"
    entries = [e.key.removeprefix(f"{root}/").split("/") for e in storage.list(root)]
    steps = sorted(int(step) for step, name in entries if name == "manifest.json" and step.isdigit())
    step = source.step if source.step is not None else max(steps, default=None)
    if step is None:
        refuse(f"strategy.replay {source}: that job has no checkpoint")
    folder = f"{root}/{step:010d}"
    try:
        manifest = json.loads(storage.get(f"{folder}/manifest.json"))
        order = load(storage.get(f"{folder}/{ORDER}"))["order"].tolist()
    except NotFound:
        refuse(f"strategy.replay {source}: checkpoint {step} has no order, it is not of an asynchronous run")
    assert manifest["step"] == len(order)
    tasks = [Task(*row) for row in order]
    if times := manifest["cursor"]["rollbacks"]:
        refuse(
            f"strategy.replay {source}: it was rolled back {times} times for its divergence, and an order "
            "does not say at which learning rate a push counted: it cannot be repeated"
        )
    if why := _misfit(tasks, total, spec.strategy.staleness):
        refuse(f"strategy.replay {source}: {why}")
    return tasks


def _misfit(order: Sequence[Task], total: int, bound: int | None) -> str | None:
    """Why a job of so many steps cannot begin with this order. bound: of its staleness."""
    last = max((task.step for task in order), default=0)
    if last >= total:
        return f"its order has step {last}, and this job has {total} steps: let it have as many as that one"
    most = max(at - task.version for at, task in enumerate(order))
    if bound is not None and most > bound:
        return f"in it a push is {most} versions behind, and strategy.staleness is {bound}: use null"
    return None

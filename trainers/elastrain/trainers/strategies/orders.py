"""The order of an earlier asynchronous run, to be repeated: read from the newest checkpoint of its job."""

from __future__ import annotations

import json

from safetensors.torch import load

from elastrain.trainers.checkpoint import ORDER
from elastrain.trainers.faults import refuse
from elastrain.trainers.spec import JobSpec, Source
from elastrain.trainers.spec_strategies import ParameterServer
from elastrain.trainers.storage import NotFound, Storage
from elastrain.trainers.strategies.ledger import Task


def asynchronous(spec: JobSpec) -> bool:
    """Do pushes count one by one, rather than summed up step by step?"""
    return isinstance(spec.strategy, ParameterServer) and spec.strategy.staleness != 0


def order_to_repeat(storage: Storage, spec: JobSpec) -> list[Task] | None:
    """None: there is none, the order is that of arrival. Raises UserFault if it is not there, or of another
    length than this job."""
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
    return [Task(*row) for row in order]

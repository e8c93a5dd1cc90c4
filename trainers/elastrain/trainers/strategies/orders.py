"""`strategy.replay`: the order of an earlier asynchronous run, to be repeated. No torch.

    the other job's checkpoint ──take_over, once──▶ jobs/{job}/replay.json ──own_copy──▶ every server

The other job may go on, or be deleted, while this one repeats it: what this one's attempts and servers go by,
now and later, is a copy in its own storage.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from safetensors import SafetensorError, deserialize

from elastrain.trainers.spec import JobSpec, Source
from elastrain.trainers.spec.source import NoSource
from elastrain.trainers.spec.strategies import ParameterServer
from elastrain.trainers.storage import AlreadyExists, NotFound, Storage
from elastrain.trainers.strategies.ledger import ORDER, Task


@dataclass(frozen=True)
class Repetition:
    source: Source  # job and step: whose order it is
    order: list[Task]

    @property
    def steps(self) -> int:
        return len(self.order)

    def must_begin(self, step: int, before: Sequence[Task]) -> None:
        """Can it begin at the checkpoint that `resume_from` names? before: the tasks that were applied up to
        there. Raises NoSource."""
        at = f"resume_from begins at step {step}"
        if step >= self.steps:
            self._refuse(f"it has {self.steps} steps, and {at}: nothing would be left to repeat")
        if list(before) != self.order[:step]:
            self._refuse(f"{at}, and before it other pushes were applied than in that run")
        if (version := min(task.version for task in self.order[step:])) < step:
            self._refuse(
                f"a push of it was computed from version {version}, and {at}, whose past is not known: begin "
                "where that run began"
            )

    def must_not_lower_its_rate(self, why: str) -> NoReturn:
        """Training went wrong amid the order. Raises NoSource."""
        self._refuse(
            f"{why}: but then that run is not repeated any more. It went through with its own spec: compare "
            "the two"
        )

    def must_fit(self, total: int, bound: int | None) -> None:
        """total: steps of this job; bound: of its staleness. Raises NoSource."""
        last = max((task.step for task in self.order), default=0)
        if last >= total:
            what = f"its order has step {last}, and this job has {total} steps"
            self._refuse(f"{what}: let it have as many as that one")
        most = max((at - task.version for at, task in enumerate(self.order)), default=0)
        if bound is not None and most > bound:
            self._refuse(
                f"in it a push is {most} versions behind, and strategy.staleness is {bound}: use null"
            )

    def _refuse(self, why: str) -> NoReturn:
        raise NoSource(f"strategy.replay {self.source}: {why}")


def take_over(storage: Storage, job: str, spec: JobSpec) -> Repetition | None:
    """What the job repeats, in a copy that is its own from now on; None: it repeats nothing. Raises NoSource
    if the order is not there, or cannot be repeated; StorageError."""
    if not isinstance(spec.strategy, ParameterServer) or spec.strategy.replay is None:
        return None
    if (taken := own_copy(storage, job)) is not None:
        return taken
    found = _find(storage, Source.parse(spec.strategy.replay))
    said = {"source": str(found.source), "order": found.order}
    try:
        storage.put(_key(job), json.dumps(said, separators=(",", ":")).encode())
    except AlreadyExists:  # another attempt was first, or we were, and the answer was lost
        return own_copy(storage, job)
    return found


def own_copy(storage: Storage, job: str) -> Repetition | None:
    """What `take_over` has left. Raises StorageError."""
    try:
        said = json.loads(storage.get(_key(job)))
    except NotFound:
        return None
    return Repetition(Source.parse(said["source"]), [Task(*row) for row in said["order"]])


def order_of(data: bytes) -> list[Task]:
    """The tasks in an `order.safetensors`. Raises SafetensorError, KeyError."""
    tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]  # without torch
    return [Task(*row) for row in struct.iter_unpack("<qq", tensors["order"]["data"])]


def _find(storage: Storage, source: Source) -> Repetition:
    root = f"jobs/{source.job}/checkpoints"
    if source.step is None:
        keys = [entry.key.removeprefix(f"{root}/").split("/") for entry in storage.list(root)]
        steps = [int(step) for step, name in keys if name == "manifest.json" and step.isdigit()]
        if not steps:
            raise NoSource(f"strategy.replay {source}: that job has no checkpoint")
        source = Source(source.job, max(steps))
    folder = f"{root}/{source.step:010d}"
    try:
        manifest, data = json.loads(storage.get(f"{folder}/manifest.json")), storage.get(f"{folder}/{ORDER}")
        found = Repetition(source, order_of(data))
    except NotFound:
        text = f"checkpoint {source.step} is not there, or has no order: it is not of an asynchronous run"
        raise NoSource(f"strategy.replay {source}: {text}") from None
    except (SafetensorError, KeyError, struct.error, ValueError) as error:
        raise NoSource(f"strategy.replay {source}: its order cannot be read: {error}") from None
    if times := manifest["cursor"]["rollbacks"]:
        found._refuse(
            f"it was rolled back {times} times for its divergence, and an order does not say at which "
            "learning rate a push counted: it cannot be repeated"
        )
    steps_once = len({task.step for task in found.order}) == found.steps == manifest["step"]
    if not steps_once or any(task.version > at for at, task in enumerate(found.order)):
        found._refuse("its order is damaged: not every step is in it once, after the version it needs")
    return found


def _key(job: str) -> str:
    return f"jobs/{job}/replay.json"

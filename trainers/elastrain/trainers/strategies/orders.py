"""`strategy.replay`: the order of an earlier asynchronous run, to be repeated. No torch.

    the other job's checkpoint ──take_over, once──▶ jobs/{job}/replay.json ──own_copy──▶ every server

The other job may go on, or be deleted, while this one repeats it: what this one's attempts and servers go by,
now and later, is a copy in its own storage.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from safetensors import deserialize

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.spec import JobSpec, Source
from elastrain.trainers.spec.source import MODEL_ONLY, NoSource, moved, place
from elastrain.trainers.spec.strategies import ParameterServer
from elastrain.trainers.storage import AlreadyExists, NotFound, Storage
from elastrain.trainers.strategies.ledger import ORDER, Task

BEGAN = "began"  # in a manifest: the checkpoint of another job with which its job began; null: the seed


@dataclass(frozen=True)
class Repetition:
    source: Source  # job and step: whose order it is
    order: list[Task]
    began: Json | None = None  # the other job's checkpoint with which that run began; None: it had none
    known: bool = True  # is that known? Not of a run that an older version saved

    @property
    def steps(self) -> int:
        return len(self.order)

    def must_begin(self, began: Json | None, step: int, before: Sequence[Task]) -> None:
        """Can it begin there? began: as of a manifest (`beginning`); before: the tasks that were applied up
        to `step`. Raises NoSource."""
        at = f"resume_from begins at step {step}" if began is not None else "this job has no resume_from"
        if self.known and _same(began) != _same(self.began):
            other = self.began and f"checkpoint {self.began['step']} of job {self.began['job']}"
            began_with = f"began with {other}: say so in resume_from" if other else "had no resume_from"
            self._refuse(f"{at}, and that run {began_with}")
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
        """Training went wrong, and there is no checkpoint after the order. Raises NoSource."""
        self._refuse(
            f"{why}: but there is no checkpoint after step {self.steps}, up to which that run is repeated, "
            "and before it another rate would not repeat it any more. Compare the two specs, or save earlier"
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
    if the order is not there, or cannot be repeated by this spec; StorageError."""
    if not isinstance(spec.strategy, ParameterServer) or spec.strategy.replay is None:
        return None
    if (taken := own_copy(storage, job)) is not None:
        return taken
    found = _find(storage, Source.parse(spec.strategy.replay), spec)
    said = {"source": str(found.source), "order": found.order, "began": found.began, "known": found.known}
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
    order = [Task(*row) for row in said["order"]]
    return Repetition(Source.parse(said["source"]), order, said["began"], said["known"])


def beginning(manifest: Json) -> Json:
    """What a manifest says of the other job's checkpoint with which its job began."""
    names = ("job", "step", "state_digest", "params_digest")
    return {**{name: manifest.get(name) for name in names}, MODEL_ONLY: MODEL_ONLY in manifest}


def read_order(storage: Storage, folder: str, manifest: Json) -> list[Task]:
    """Which tasks a checkpoint's steps were, in order; of one that was not made out of order, one after the
    other. Raises NoSource if the file is damaged; StorageError."""
    file = next((f for f in manifest["files"] if f["name"] == ORDER), None)
    if file is None:
        return [Task(step, step) for step in range(manifest["step"])]
    data = storage.get(f"{folder}/{ORDER}")
    if hashlib.sha256(data).hexdigest() != file["sha256"]:
        raise NoSource(f"{folder}/{ORDER} is damaged: its checksum differs from the manifest's")
    tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]  # without torch
    return [Task(*row) for row in struct.iter_unpack("<qq", tensors["order"]["data"])]


def _find(storage: Storage, source: Source, spec: JobSpec) -> Repetition:
    root = f"jobs/{source.job}/checkpoints"
    if source.step is None:
        keys = [entry.key.removeprefix(f"{root}/").split("/") for entry in storage.list(root)]
        steps = [int(step) for step, name in keys if name == "manifest.json" and step.isdigit()]
        if not steps:
            raise NoSource(f"strategy.replay {source}: that job has no checkpoint")
        source = Source(source.job, max(steps))
    folder = f"{root}/{source.step:010d}"
    try:
        manifest = json.loads(storage.get(f"{folder}/manifest.json"))
        order = read_order(storage, folder, manifest)
    except NotFound:
        raise NoSource(f"strategy.replay {source}: that checkpoint is not there, or has no order") from None
    found = Repetition(source, order, manifest.get(BEGAN), BEGAN in manifest)
    if why := _unfit(manifest, spec, order):
        found._refuse(why)
    return found


def _unfit(manifest: Json, spec: JobSpec, order: Sequence[Task]) -> str | None:
    """Why nobody, or this spec, can repeat it."""
    if all(f["name"] != ORDER for f in manifest["files"]):
        return "that checkpoint has no order: it is not of an asynchronous run"
    if times := manifest["cursor"].get("rollbacks"):
        return (
            f"it was rolled back {times} times for its divergence, and an order does not say at which "
            "learning rate a push counted: it cannot be repeated"
        )
    if "place" in manifest and (other := moved(manifest["place"], place(spec, None))) is not None:
        return f"{other}: its steps are of other data than those of this job"
    once = len({task.step for task in order}) == len(order) == manifest["step"]
    if not once or any(task.version > at for at, task in enumerate(order)):
        return "its order is damaged: not every step is in it once, after the version it needs"
    return None


def _same(began: Json | None) -> Json | None:
    """What two beginnings have alike if they are the same: whatever the job was called that left it."""
    if began is None:
        return None
    kind = "params_digest" if began[MODEL_ONLY] else "state_digest"
    return {
        MODEL_ONLY: began[MODEL_ONLY],
        kind: began[kind],
        "step": None if began[MODEL_ONLY] else began["step"],
    }


def _key(job: str) -> str:
    return f"jobs/{job}/replay.json"

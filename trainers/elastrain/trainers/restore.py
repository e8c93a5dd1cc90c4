"""Loading a checkpoint into a worker: the whole model, and the optimizer state of its chunks."""

from __future__ import annotations

import hashlib

from safetensors.torch import load as load_tensors
from torch import Tensor

from elastrain.trainers.chunks import Ownership
from elastrain.trainers.cursor import Cursor
from elastrain.trainers.messages import Json
from elastrain.trainers.replica import Replica
from elastrain.trainers.storage import Storage, StorageError


class BadCheckpoint(Exception):
    """A file of a checkpoint is not what its manifest says."""

    def __init__(self, step: int, file: str, why: str) -> None:
        super().__init__(f"checkpoint {step}: {file}: {why}")
        self.step, self.file, self.why = step, file, why


def load(replica: Replica, storage: Storage, source: Json, ownership: Ownership, rank: int) -> None:
    """Take over a checkpoint, or begin at step 0 from the seed if `source` has no manifest.

    Raises BadCheckpoint, naming the file, if one is missing, short or altered.
    """
    manifest = source["manifest"]
    if manifest is None:
        replica.reinitialise()
        replica.begin(ownership, rank)
        return
    try:
        _load(replica, storage, source["prefix"], manifest, ownership, rank)
    except BaseException:
        replica.forget()  # half a checkpoint is nothing: it must not be reported as held
        raise


def _load(
    replica: Replica, storage: Storage, prefix: str, manifest: Json, ownership: Ownership, rank: int
) -> None:
    step = manifest["step"]
    files = {f["name"]: f for f in manifest["files"]}
    tensors = load_tensors(_fetch(storage, prefix, files["model.safetensors"], step))
    _take_model(replica, tensors, step)
    replica.begin(ownership, rank)
    for part in manifest["parts"]:
        if replica.rule.slots:
            state = load_tensors(_fetch(storage, prefix, files[part["file"]], step))
            _take_state(replica, part["ranges"], state)
    replica.cursor = Cursor.from_json(manifest["cursor"])


def _fetch(storage: Storage, prefix: str, file: Json, step: int) -> bytes:
    try:
        data = storage.get(f"{prefix}/{file['name']}")
    except StorageError as error:
        raise BadCheckpoint(step, file["name"], str(error)) from error
    if len(data) != file["bytes"]:
        raise BadCheckpoint(
            step, file["name"], f"its size is {len(data)} bytes, the manifest says {file['bytes']}"
        )
    if hashlib.sha256(data).hexdigest() != file["sha256"]:
        raise BadCheckpoint(step, file["name"], "its checksum differs from the manifest's")
    return data


def _take_model(replica: Replica, tensors: dict[str, Tensor], step: int) -> None:
    replica.model.params.zero_()  # between the parameters too, where a bit may have flipped
    for name, value in replica.model.values():
        if name not in tensors or tensors[name].shape != value.shape:
            raise BadCheckpoint(
                step, "model.safetensors", f"parameter {name} is not there as {tuple(value.shape)}"
            )
        value.copy_(tensors[name])
    for name, base in replica.model.buffers.base.items():
        base.copy_(tensors[name])
    replica.model.buffers.reset()
    replica.touched = True


def _take_state(replica: Replica, ranges: list[tuple[str, int, int]], state: dict[str, Tensor]) -> None:
    """Copy every range of a part into the chunks that it overlaps."""
    space = replica.model.space
    starts = {p.name: p.start for p in space.pieces}
    at = 0
    for name, a, b in ranges:
        first = starts[name] + a
        for blocks, held in replica.states.pieces.items():
            window = space.elements(blocks)
            lo, hi = max(first, window.start), min(first + b - a, window.stop)
            if lo < hi:
                for slot in replica.rule.slots:
                    held[slot][lo - window.start : hi - window.start] = state[slot][
                        at + lo - first : at + hi - first
                    ]
        at += b - a
    if any(t.numel() != at for t in state.values()):
        raise AssertionError(f"a part of {[t.numel() for t in state.values()]} elements describes {at}")

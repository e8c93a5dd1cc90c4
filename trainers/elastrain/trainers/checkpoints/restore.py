"""Loading a checkpoint into a worker: the whole model, and the optimizer state of its chunks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from safetensors.torch import load as load_tensors
from torch import Tensor

from elastrain.trainers.exchange.transports import Broken
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.cursor import Counts, Cursor
from elastrain.trainers.spec.source import MODEL_ONLY
from elastrain.trainers.storage import NotFound, Storage, StorageError
from elastrain.trainers.strategies.ledger import ORDER, Task
from elastrain.trainers.training.replica import Replica

PATIENCE_S = 60.0  # with a store that does not answer; then all begin anew
RETRY_S = 1.0


class BadCheckpoint(Exception):
    """A file of a checkpoint is not what its manifest says."""

    def __init__(self, step: int, file: str, why: str) -> None:
        super().__init__(f"checkpoint {step}: {file}: {why}")
        self.step, self.file, self.why = step, file, why


def load(
    replica: Replica,
    storage: Storage,
    source: Json,
    ownership: Ownership,
    rank: int,
    alive: Callable[[], None],
) -> None:
    """Take over a checkpoint, or begin at step 0 from the seed if `source` has no manifest.

    alive: called again and again; what it raises ends the loading. Raises BadCheckpoint, naming the file, if
    one is missing, short or altered; Broken if the store does not answer.
    """
    manifest = source["manifest"]
    if manifest is None:
        replica.reinitialise()
        replica.begin(ownership, rank)
        _lower_rate(replica, source)
        return
    try:
        _load(replica, Files(storage, source["prefix"], manifest, alive), ownership, rank)
    except BaseException:
        replica.forget()  # half a checkpoint is nothing: it must not be reported as held
        raise
    _lower_rate(replica, source)


def _lower_rate(replica: Replica, source: Json) -> None:
    """As often as the driver says: a checkpoint does not know how often it was rolled back to."""
    assert replica.cursor is not None
    replica.cursor = replace(replica.cursor, rollbacks=source["rollbacks"])


class Files:
    """The files of one checkpoint, verified as they are read."""

    def __init__(self, storage: Storage, prefix: str, manifest: Json, alive: Callable[[], None]) -> None:
        self.manifest, self._storage, self._prefix, self._alive = manifest, storage, prefix, alive
        self._described = {f["name"]: f for f in manifest["files"]}

    def read(self, name: str) -> dict[str, Tensor]:
        """Raises BadCheckpoint; Broken if the store does not answer for long."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return load_tensors(self._fetch(self._described[name]))
            except NotFound as error:
                raise BadCheckpoint(self.manifest["step"], name, str(error)) from error
            except StorageError as error:  # that a store is away says nothing of what is in it
                if time.monotonic() > deadline:
                    raise Broken(f"checkpoint {self.manifest['step']} could not be read: {error}") from error
                self._alive()
                time.sleep(RETRY_S)

    def _fetch(self, file: Json) -> bytes:
        pieces: list[bytes] = []
        digest = hashlib.sha256()
        for piece in self._storage.stream(f"{self._prefix}/{file['name']}"):
            self._alive()
            digest.update(piece)
            pieces.append(piece)
        step, size = self.manifest["step"], sum(map(len, pieces))
        if size != file["bytes"]:
            why = f"its size is {size} bytes, the manifest says {file['bytes']}"
            raise BadCheckpoint(step, file["name"], why)
        if digest.hexdigest() != file["sha256"]:
            raise BadCheckpoint(step, file["name"], "its checksum differs from the manifest's")
        return b"".join(pieces)


def _load(replica: Replica, files: Files, ownership: Ownership, rank: int) -> None:
    _take_model(replica, files.read("model.safetensors"), files.manifest["step"])
    replica.begin(ownership, rank)
    if MODEL_ONLY in files.manifest:
        return  # at step 0, all else as the seed gives it
    if replica.rule.slots and not files.manifest["parts"]:
        why = f"there is no {', '.join(replica.rule.slots)} in it: it was saved by another kind of optimizer"
        raise BadCheckpoint(files.manifest["step"], "manifest.json", why)
    trained = {name for part in files.manifest["parts"] for name, _, _ in part["ranges"]}
    if strange := trained - {name for name, _ in replica.model.values()}:
        why = f"it has the state of {', '.join(sorted(strange))}, which this model has not"
        raise BadCheckpoint(files.manifest["step"], "manifest.json", why)
    for part in files.manifest["parts"]:
        if replica.states.slots:
            state = files.read(part["file"])
            missing = [slot for slot in replica.rule.slots if slot not in state]
            if missing and part["ranges"]:
                why = f"it has no {', '.join(missing)}: it was saved by another kind of optimizer"
                raise BadCheckpoint(files.manifest["step"], part["file"], why)
            _take_state(replica, part["ranges"], state)
            for name, value in replica.common.items():
                if name in state and state[name].shape == value.shape:
                    value.copy_(state[name])
    cursor = Cursor.from_json(files.manifest["cursor"])
    replica.cursor = replace(cursor, counts=_counts(replica, cursor.counts, trained))
    if replica.order is not None:
        replica.order = _order(files, replica.cursor.step)


def _counts(replica: Replica, counts: Counts, trained: set[str]) -> Counts:
    """How often each parameter was updated. trained: those that the checkpoint has state of, and numbers;
    here others of the model may be frozen. Empty: of a rule without state, which does not count."""
    ours = [piece.name for piece in sorted(replica.model.space.pieces, key=lambda piece: piece.index)]
    if not trained or trained == set(ours):
        return counts
    names = [name for name, _ in replica.model.module.named_parameters() if name in trained]
    return Counts.each([counts.of(names.index(name)) if name in trained else 0 for name in ours])


def _order(files: Files, steps: int) -> list[Any]:
    """What was applied so far; in a checkpoint of another strategy: one step after the other."""
    if all(f["name"] != ORDER for f in files.manifest["files"]):
        return [Task(step, step) for step in range(steps)]
    return [Task(*row) for row in files.read(ORDER)["order"].tolist()]


def _take_model(replica: Replica, tensors: dict[str, Tensor], step: int) -> None:
    replica.model.params.zero_()  # between the parameters too, where a bit may have flipped
    for name, value in replica.model.values():
        if name not in tensors:
            raise BadCheckpoint(step, "model.safetensors", f"parameter {name} is not there")
        try:
            value.copy_(replica.model.part(name, tensors[name]))
        except ValueError as error:
            raise BadCheckpoint(step, "model.safetensors", f"parameter {error}") from error
    for name, base in replica.model.buffers.base.items():
        if name not in tensors or tensors[name].shape != base.shape:
            raise BadCheckpoint(
                step, "model.safetensors", f"buffer {name} is not there as {tuple(base.shape)}"
            )
        base.copy_(tensors[name])
    replica.model.buffers.reset()
    replica.touched = True


def _take_state(replica: Replica, ranges: list[tuple[str, int, int]], state: dict[str, Tensor]) -> None:
    """Copy every range of a part into the chunks that it overlaps. What no slot of ours is called is another
    job's, and left, as is what is frozen here; what is not in it stays as it begins."""
    model, slots = replica.model, replica.states.slots
    space = model.space
    pieces = {p.name: p for p in space.pieces}
    known = {name: slot for name, slot in slots.items() if name in state}
    at = dict.fromkeys(known, 0)
    for name, a, b in ranges:
        if (piece := pieces.get(name)) is None:
            at = {slot: at[slot] + kind.entries(b - a) for slot, kind in known.items()}
            continue
        first = piece.start - model.offset(piece) + a  # where element a would lie if all were here
        end = piece.start + model.filled(piece)
        for slot, whole in replica.gathered.items():
            whole[first : first + b - a] = state[slot][at[slot] : at[slot] + b - a]
        for blocks, held in replica.states.pieces.items():
            window = space.elements(blocks)
            lo, hi = max(first, window.start, piece.start), min(first + b - a, window.stop, end)
            if lo < hi:
                for slot, kind in known.items():
                    there = kind.window(lo - first, hi - first)
                    values = state[slot][at[slot] + there.start : at[slot] + there.stop]
                    held[slot][kind.window(lo - window.start, hi - window.start)] = values
        for slot, kind in known.items():
            at[slot] += kind.entries(b - a)
    if any(state[slot].numel() != end for slot, end in at.items()):
        raise AssertionError(f"a part of {[t.numel() for t in state.values()]} elements describes {at}")

"""A worker's side of a checkpoint: copy what is ours, train on, upload in the background.

Each owner uploads one part with the optimizer state of its chunks, described by parameter ranges, so that
any number of workers can load it. Rank 0 also uploads the whole model. The driver writes the manifest when
it has heard of everything: a checkpoint without a manifest does not exist.
"""

from __future__ import annotations

import hashlib
import queue
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.checkpoints.tensor_file import Entry, TensorFiles
from elastrain.trainers.membership.messages import Json, Range
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.flat import params_digest, tensor_bytes
from elastrain.trainers.numerics.memory import copy_again
from elastrain.trainers.numerics.states import Slot
from elastrain.trainers.storage import AlreadyExists, Storage, StorageError
from elastrain.trainers.strategies.ledger import ORDER
from elastrain.trainers.training import background
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.session import Dismissed, Session

UPLOAD_TRIES = 4
ROOM_S = 600.0  # for an upload to come to an end, before the next checkpoint is given up


@dataclass
class Snapshot:
    """A copy in host memory of what one rank has to upload."""

    step: int
    generation: int
    rank: int
    world: int
    cursor: Json
    chunks: dict[Range, dict[str, Tensor]]  # owned chunk -> {"param": (elements,) f32, slots...}
    ranges: list[tuple[str, int, int]]  # parameter ranges of the part, in order
    state: dict[str, list[Tensor]]  # slot -> the values of each range
    slots: dict[str, Slot]
    block: int  # elements
    first_block: int  # number of the first block here, among those of all processes of a worker
    model: dict[str, Tensor] | None  # rank 0: every parameter and buffer by name
    parameters: list[str]  # rank 0: the names that are parameters
    buffers_digest: str
    common: dict[str, Tensor]  # rank 0: what all replicas have alike beside the model
    order: list[tuple[int, int]] | None = None  # rank 0: which step was applied, from which version, in order
    taken: float = field(default_factory=time.monotonic)


class Snapshots:
    """Takes snapshots and uploads them, one after the other, in one background thread."""

    def __init__(self, session: Session, storage: Storage, job: str, attempt: int) -> None:
        self.session, self.storage = session, storage
        self.root, self.attempt = f"jobs/{job}/checkpoints", attempt
        self._queue: queue.Queue[Snapshot] = queue.Queue(maxsize=1)
        self._files = TensorFiles()
        background.start(self._upload_all, name="upload")

    def take(self, replica: Replica, ownership: Ownership, rank: int, generation: int) -> None:
        """Copy now; the rest happens behind the next steps. Raises Halted if it has to wait for that."""
        assert replica.cursor is not None
        if rank not in ownership.keepers:
            return  # it keeps nothing that others do not
        model, shards = replica.model, replica.shards
        place, places = rank * shards.count + shards.number, ownership.world * shards.count
        if not all(shards.gather(self._has_room(generation))):
            whose = {"step": replica.step, "generation": generation, "rank": place, "world": places}
            why = f"the one before it is not uploaded after {ROOM_S:.0f} s"
            self.session.send("part_failed", **whose, why=why)
            return
        space, slots = model.space, replica.states.slots
        # rank 0 uploads the whole model: its own chunks are a part of the same copy
        params = copy_again(model.params) if rank == 0 else model.params
        chunks: dict[Range, dict[str, Tensor]] = {}
        ranges: list[tuple[str, int, int]] = []
        pieces: dict[str, list[Tensor]] = {s: [] for s in slots}
        for chunk in (c for c in ownership.owned(rank) if c[0] < c[1]):
            window, state = space.elements(chunk), replica.states.read(chunk)
            chunks[chunk] = {
                "param": params[window] if rank == 0 else copy_again(params[window]),
                **{s: copy_again(state[s]) for s in slots},
            }
            for piece, a, b in model.ranges_in(chunk):
                first = model.offset(piece)
                ranges.append((piece.name, first + a, first + b))
                at = piece.start - window.start
                for name, slot in slots.items():
                    pieces[name].append(chunks[chunk][name][slot.window(at + a, at + b)])
        whole = model.whole(params) if rank == 0 else None
        if whole is not None and place == 0:
            whole |= {n: t.clone() for n, t in model.buffers.base.items()}
        self._queue.put(
            Snapshot(
                replica.step,
                generation,
                place,
                places,
                replica.cursor.to_json(),
                chunks,
                ranges,
                {s: p for s, p in pieces.items() if p},
                slots,
                space.block,
                shards.number * space.blocks,
                whole if place == 0 else None,
                [n for n, _ in model.values()],
                _digest_of_common(replica),
                {n: t.clone() for n, t in replica.common.items()} if place == 0 else {},
                list(replica.order) if replica.order is not None and place == 0 else None,
            )
        )

    def _has_room(self, generation: int) -> bool:
        """A store that cannot keep up slows us down, but not for good."""
        deadline = time.monotonic() + ROOM_S
        while self._queue.full():
            self.session.works(generation)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _upload_all(self) -> None:
        while True:
            snapshot = self._queue.get()
            try:
                self._upload(snapshot)
            except Dismissed:
                return
            except Exception as error:
                self._tell("part_failed", snapshot, why=str(error))
            finally:
                del snapshot  # its memory is for the next one, which may be taken before this thread has it
                self._queue.task_done()

    def flush(self, timeout_s: float) -> None:
        """Wait until everything that was taken is uploaded: a worker that leaves still owes its part."""
        deadline = time.monotonic() + timeout_s
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)

    def _upload(self, snapshot: Snapshot) -> None:
        name = f"part-{self.attempt}-{snapshot.generation}-{snapshot.rank}-{secrets.token_hex(4)}.safetensors"
        part = None
        if snapshot.state or snapshot.common:
            state = {slot: Entry.joined(values) for slot, values in snapshot.state.items()}
            state |= {name: Entry.of(value) for name, value in snapshot.common.items()}
            part = self._put(snapshot.step, name, self._files.pack(state), exact=True)
            part["ranges"] = snapshot.ranges
        whole = None
        if snapshot.model is not None:
            model = {n: Entry.of(t) for n, t in snapshot.model.items()}
            whole = self._put(snapshot.step, "model.safetensors", self._files.pack(model), exact=False)
            named = [(n, snapshot.model[n]) for n in snapshot.parameters]
            whole["params"] = [{"name": n, "shape": list(t.shape), "dtype": _dtype(t)} for n, t in named]
            whole["params_digest"] = params_digest(iter(named))
            whole["buffers_digest"] = snapshot.buffers_digest
            whole["cursor"] = snapshot.cursor
            if snapshot.order is not None:
                order = {"order": Entry.of(torch.tensor(snapshot.order, dtype=torch.int64).reshape(-1, 2))}
                whole["order"] = self._put(snapshot.step, ORDER, self._files.pack(order), exact=False)
        seconds = time.monotonic() - snapshot.taken
        self._tell("part", snapshot, part=part, model=whole, digests=_digests(snapshot), seconds=seconds)

    def _tell(self, kind: str, snapshot: Snapshot, **fields: Any) -> None:
        try:
            self.session.send(
                kind,
                step=snapshot.step,
                generation=snapshot.generation,
                rank=snapshot.rank,
                world=snapshot.world,
                **fields,
            )
        except Dismissed:
            return

    def _put(self, step: int, name: str, data: memoryview, exact: bool) -> Json:
        key = f"{self.root}/{step:010d}/{name}"
        digest = hashlib.sha256(data).hexdigest()
        for attempt in range(UPLOAD_TRIES):
            try:
                self.storage.put(key, data)
                break
            except AlreadyExists:
                # `model.safetensors` has a fixed name: an attempt that died before its manifest may have left
                # one. The same step has the same bits; one that differs is damaged, and no manifest names it.
                if not exact and hashlib.sha256(self.storage.get(key)).hexdigest() != digest:
                    self.storage.put(key, data, create_only=False)
                break
            except StorageError:
                if attempt + 1 == UPLOAD_TRIES:
                    raise
                time.sleep(0.5 * 2**attempt)
        return {"file": name, "bytes": len(data), "sha256": digest}


def _digests(snapshot: Snapshot) -> list[tuple[int, str]]:
    """(block, digest over its parameters and optimizer state), for every block of the owned chunks."""
    result, slots = [], {"param": Slot("param"), **snapshot.slots}
    for (first, last), tensors in snapshot.chunks.items():
        for block in range(first, last):
            start = (block - first) * snapshot.block
            digest = hashlib.sha256()
            for name in sorted(tensors):
                digest.update(name.encode())
                window = slots[name].window(start, start + snapshot.block)
                digest.update(tensor_bytes(tensors[name][window]))
            result.append((snapshot.first_block + block, digest.hexdigest()[:32]))
    return result


def _digest_of_common(replica: Replica) -> str:
    """Over the buffers, and what else all replicas have alike."""
    buffers = replica.model.buffers.digest()
    if not replica.common:
        return buffers
    whole = hashlib.sha256(buffers.encode())
    for name, value in sorted(replica.common.items()):
        whole.update(name.encode())
        whole.update(tensor_bytes(value))
    return whole.hexdigest()


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")

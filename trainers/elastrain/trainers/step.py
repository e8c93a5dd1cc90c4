"""One step in its parts: microbatch gradients, reduce, commit, gather (core: the elastic step).

Per bucket, an all-to-all brings the partial sums to the chunk's owner, which adds them in tree order and
sends the sum to its buddy. A member enters the commit only with every sum that it owns or keeps for another
in its memory; so a commit record, once it exists anywhere, can be carried out by whoever survives.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.chunks import Ownership, intersect
from elastrain.trainers.collectives import Group
from elastrain.trainers.cursor import merge
from elastrain.trainers.messages import Json, Range
from elastrain.trainers.replica import Partial, Replica
from elastrain.trainers.samples import SampleReader, seed_everything
from elastrain.trainers.task import loss_of
from elastrain.trainers.tree import Node, cover, root


def compute(replica: Replica, reader: SampleReader, step: int, microbatch: int) -> None:
    """The gradient of one microbatch, added to what this worker has of the step."""
    assert replica.partial is not None
    model, partial = replica.model, replica.partial
    started = time.perf_counter()
    indices = replica.plan.indices(step, microbatch)
    batch = reader.read("train", replica.plan.epoch(step), indices)
    model.buffers.reset()
    model.forget_gradients()
    model.module.train()
    seed_everything(replica.spec.seed, step, microbatch)
    with precision(replica):
        loss = loss_of(replica.task, model.module, batch)
    (loss.sum * replica.scale).backward()  # type: ignore[no-untyped-call]
    gradient, used = model.gradient()
    model.forget_gradients()
    weight = float(loss.weight)
    partial.gradients.add(microbatch, gradient)
    if model.buffers.floats:
        partial.buffers.add(microbatch, model.buffers.floats_now(weight))
    partial.used |= used
    partial.others = model.buffers.others_now()
    ids = hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()[:16]
    partial.rows[microbatch] = [
        microbatch,
        float(loss.sum.detach()),
        weight,
        round(time.perf_counter() - started, 6),
        ids,
        model.buffers.others_digest(),
    ]


@contextlib.contextmanager
def precision(replica: Replica) -> Iterator[None]:
    """bf16 is autocast over fp32 masters."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=replica.spec.precision == "bf16"):
        yield


class Exchange:
    """The collectives of one step, for one generation."""

    def __init__(self, replica: Replica, group: Group, ownership: Ownership, workers: Sequence[str]) -> None:
        self.replica, self.group, self.ownership, self.workers = replica, group, ownership, workers
        self.rank, self.world = group.rank, group.world

    # ---- reduce -----------------------------------------------------------------------------

    def reduce(self, has: Sequence[Sequence[int]]) -> None:
        """Bring every chunk's gradient sum to those who keep its state. has[r]: microbatches of rank r."""
        partial = self.replica.partial
        assert partial is not None
        covers = [cover(h, partial.count) for h in has]
        buckets = self.ownership.space.buckets()
        arrivals = [self._launch(bucket, covers, partial) for bucket in buckets]
        sums: dict[Range, Tensor] = {}
        for bucket, arrival in zip(buckets, arrivals, strict=True):
            mine = self.ownership.reduces(bucket, self.rank)
            if mine[0] < mine[1]:
                sums[mine] = self._sum(mine, covers, arrival(), partial)
            else:
                arrival()
        self._forward(sums)
        self._reduce_buffers(covers, partial)

    def _launch(self, bucket: Range, covers: list[list[Node]], partial: Partial) -> Any:
        space = self.ownership.space

        sends: list[Tensor | None] = []
        for peer in range(self.world):
            window = space.elements(self.ownership.reduces(bucket, peer))
            parts = [partial.gradients.parts[node][window] for node in covers[self.rank]]
            if peer == self.rank or not parts:
                sends.append(None)
            else:
                sends.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        length = space.length(self.ownership.reduces(bucket, self.rank))
        sizes = [len(c) * length for c in covers]
        return self.group.start_exchange(sends, sizes, torch.float32)

    def _sum(
        self, blocks: Range, covers: list[list[Node]], arrived: list[Tensor], partial: Partial
    ) -> Tensor:
        window = self.ownership.space.elements(blocks)
        size = window.stop - window.start
        parts = {n: (partial.gradients.parts[n][window], False) for n in covers[self.rank]}
        for peer, data in enumerate(arrived):
            for at, node in enumerate(covers[peer] if peer != self.rank else []):
                parts[node] = (data[at * size : (at + 1) * size], True)
        return root(parts, partial.count, add=_add_into_received)[0]

    def _forward(self, sums: dict[Range, Tensor]) -> None:
        """Each owner sends its chunks to its buddy; afterwards `replica.reduced` covers all that is held."""
        own, space = self.ownership, self.ownership.space
        held = own.held(self.rank)
        if self.world <= 2:
            self.replica.reduced = {
                c: s[space.elements(c).start - space.elements(b).start :][: space.length(c)]
                for c in held
                for b, s in sums.items()
                if intersect(c, b) == c
            }
            return
        sends: list[Tensor | None] = [None] * self.world
        buddy = own.buddy[self.rank]
        mine = [sums[c] for c in own.owned(self.rank) if c in sums]
        if buddy is not None and mine:
            sends[buddy] = torch.cat(mine)
        kept = own.kept_for(self.rank)
        sizes = [sum(space.length(c) for c in own.owned(r)) if r in kept else 0 for r in range(self.world)]
        arrived = self.group.exchange(sends, sizes, torch.float32)
        reduced = {c: sums[c] for c in own.owned(self.rank) if c in sums}
        for owner in kept:
            at = 0
            for chunk in own.owned(owner):
                size = space.length(chunk)
                if size:
                    reduced[chunk] = arrived[owner][at : at + size]
                    at += size
        self.replica.reduced = {c: reduced[c] for c in held}

    def _reduce_buffers(self, covers: list[list[Node]], partial: Partial) -> None:
        """Buffers go to everyone: they are small, and no one keeps a part of them."""
        buffers = self.replica.model.buffers
        if not buffers:
            return
        size = buffers.flat_size()
        parts = {n: partial.buffers.parts[n] for n in covers[self.rank]} if size else {}
        if size:
            mine = torch.cat([parts[n] for n in covers[self.rank]]) if parts else None
            arrived = self.group.exchange([mine] * self.world, [len(c) * size for c in covers], torch.float64)
            for peer, data in enumerate(arrived):
                for at, node in enumerate(covers[peer] if peer != self.rank else []):
                    parts[node] = data[at * size : (at + 1) * size]
        total = root(parts, partial.count) if size else torch.empty(0, dtype=torch.float64)
        self.replica.new_buffers = (total, partial.others)
        if buffers.others:
            self._share_others(covers)

    def _share_others(self, covers: list[list[Node]]) -> None:
        """A member without a microbatch of this step learns the other buffers from one that has some."""
        have = [r for r, c in enumerate(covers) if c]
        if len(have) == self.world or self.replica.new_buffers is None:
            return
        others = self.replica.model.buffers.others
        if self.rank == have[0]:
            values = self.replica.new_buffers[1]
            mine = torch.cat([values[n].reshape(-1).to(torch.int64) for n in others])
        else:
            mine = None
        sizes = [0] * self.world
        named = self.replica.model.buffers.named
        length = sum(named[n].numel() for n in others)
        lacking = self.rank not in have
        sizes[have[0]] = length if lacking else 0
        sends = [mine if mine is not None and r not in have else None for r in range(self.world)]
        arrived = self.group.exchange(sends, sizes, torch.int64)
        if lacking:
            at, values = 0, {}
            for name in others:
                like = named[name]
                values[name] = arrived[have[0]][at : at + like.numel()].view(like.shape).to(like.dtype)
                at += like.numel()
            self.replica.new_buffers = (self.replica.new_buffers[0], values)

    # ---- commit and gather ------------------------------------------------------------------

    def commit(self, log: int) -> Json:
        """The one moment that decides. `log`: the newest command that this worker knows."""
        partial = self.replica.partial
        assert partial is not None
        entry = {
            "step": self.replica.step,
            "log": log,
            "norms": self._norms(),
            "used": f"{partial.used:x}",
            "microbatches": list(partial.rows.values()),
        }
        return merge(self.group.gather_json(entry), self.workers)

    def _norms(self) -> list[float]:
        """Squared norms of the summed gradient, fp64, per owned block."""
        norms = []
        for chunk in self.ownership.owned(self.rank):
            if chunk[0] == chunk[1]:
                continue
            gradient = self.replica.reduced[chunk]
            for part in torch.split(gradient, self.ownership.space.block):
                norms.append(float(part.to(torch.float64).square_().sum()))
        return norms

    def gather(self) -> None:
        """Everybody gets the chunks that it does not keep, from their owners."""
        own, space, params = self.ownership, self.ownership.space, self.replica.model.params
        if self.world > 2:
            buddy = own.buddy[self.rank]
            mine = torch.cat([params[space.elements(c)] for c in own.owned(self.rank)])
            sends = [None if r in (self.rank, buddy) else mine for r in range(self.world)]
            kept = {self.rank, *own.kept_for(self.rank)}
            sizes = [
                0 if r in kept else sum(space.length(c) for c in own.owned(r)) for r in range(self.world)
            ]
            arrived = self.group.exchange(sends, sizes, torch.float32)
            for owner in (r for r in range(self.world) if r not in kept):
                at = 0
                for chunk in own.owned(owner):
                    window = space.elements(chunk)
                    params[window] = arrived[owner][at : at + space.length(chunk)]
                    at += space.length(chunk)
        self.replica.whole = True


def _add_into_received(left: tuple[Tensor, bool], right: tuple[Tensor, bool]) -> tuple[Tensor, bool]:
    """left + right, kept where one that arrived was: own partials must survive a broken step.

    The flag says that a tensor may be overwritten.
    """
    out = left[0] if left[1] else right[0] if right[1] else None
    return torch.add(left[0], right[0], out=out), True

"""The reduce of one step: from everybody's partial sums to the sums of the chunks that one keeps.

    backward ──bucket is final──▶ all-to-all ──▶ added in tree order ──▶ owner ──▶ buddy

The all-to-alls are launched in bucket order by every member, also by one that has nothing to send, each as
soon as its bucket and all before it are final, and a few at a time: while backward still makes the gradients
of the next ones. Received partials are added into one another, never into own ones: these must survive a
broken step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import AT_ONCE, Arrival, Group, joined
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import Ownership, intersect
from elastrain.trainers.numerics.memory import blank, blank_again
from elastrain.trainers.numerics.partials import Partial
from elastrain.trainers.numerics.tree import Node, cover, root
from elastrain.trainers.training.replica import Replica

SMALLEST = 1e-30  # below it squares of single elements may have vanished


class Reduction:
    """Tell it which buckets are final (`passed_on`), then `finish`. `norms` is what a commit needs of it."""

    def __init__(
        self, replica: Replica, group: Group, ownership: Ownership, has: Sequence[Sequence[int]]
    ) -> None:
        """has[r]: the microbatches whose gradients rank r will have."""
        assert replica.partial is not None
        self.replica, self.group, self.ownership = replica, group, ownership
        self.partial: Partial = replica.partial
        self.rank, self.world, self.lanes = group.rank, group.world, self.partial.gradients.lanes
        self.covers = [cover(h, self.partial.count, self.partial.gradients.ceiling) for h in has]
        self.buckets = ownership.space.buckets()
        self.norms: list[float] = []  # squared, per owned block
        # is what travelled before it here? True: until it is. All members exchange in the same order
        self.may_begin: Callable[[bool], bool] = lambda wait: True
        self._wide = blank(ownership.space.block, torch.float64)
        self._final: set[int] = set()
        self._arrivals: list[Arrival | None] = []  # None: taken in
        self._taken = 0
        self._sums: dict[Range, Tensor] = {}  # (lanes, elements) f32
        self._room: Tensor | None = None  # where sums lie one behind the other, filled up to
        self._filled = 0
        self._error: Exception | None = None

    # ---- while backward runs ----------------------------------------------------------------

    def passed_on(self, bucket: int) -> None:
        """The own sums of a bucket are final. Never raises: backward must not end for a lost peer. What has
        arrived meanwhile is added up."""
        self._final.add(bucket)
        try:
            while self._error is None and self._go_on():
                pass
        except Exception as error:
            self._error = error  # raised by `finish`

    def _go_on(self) -> bool:
        """Launch the next bucket, or add up one that has arrived. False: there is nothing to do now."""
        launched = len(self._arrivals)
        final = launched in self._final and launched - self._taken < AT_ONCE
        if final and self.may_begin(False):
            self._arrivals.append(self._launch(self.buckets[launched]))
        elif self._next_is_here():
            self._take_in()
        else:
            return False
        return True

    def _next_is_here(self) -> bool:
        arrival = self._arrivals[self._taken] if self._taken < len(self._arrivals) else None
        return arrival is not None and arrival.ready()

    def _take_in(self) -> None:
        """Add up the next bucket; what was received for it is given back."""
        arrival, bucket = self._arrivals[self._taken], self.buckets[self._taken]
        assert arrival is not None
        own = self.ownership.chunk(bucket, self.rank)
        for blocks, arrived in self._runs(bucket, arrival()):
            self._sums[blocks] = self._sum(blocks, arrived)
            self._measure(own, blocks, self._sums[blocks])
        self._arrivals[self._taken] = None
        self._taken += 1

    def _runs(self, bucket: Range, arrived: list[Tensor]) -> Iterable[tuple[Range, list[Tensor]]]:
        """The blocks of a bucket that this rank adds up, in runs, each with what came of it, by rank."""
        mine = self.ownership.reduces(bucket, self.rank)
        return [(mine, arrived)] if mine[0] < mine[1] else []

    def _launch(self, bucket: Range) -> Arrival:
        space, mine = self.ownership.space, self.covers[self.rank]
        # as it lies there, its own part included
        whole = len(mine) == 1 and self.lanes == 1 and not self.ownership.shared
        sends: list[Tensor | None] = []
        for peer in range(self.world):
            parts = [part for node in mine for part in self._own(node, self.ownership.reduces(bucket, peer))]
            if not parts or (peer == self.rank and not whole):
                sends.append(None)
            else:
                sends.append(parts[0] if len(parts) == 1 else torch.cat(parts))
        length = self.lanes * space.length(self.ownership.reduces(bucket, self.rank))
        sizes = [len(c) * length for c in self.covers]
        if not whole:
            sizes[self.rank] = 0
        into = self._place(sum(sizes)) if self.ownership.shared and 0 < sum(sizes) <= length else None
        return self.group.start_exchange(sends, sizes, torch.float32, into)

    def _own(self, node: Node, blocks: Range) -> list[Tensor]:
        """The own sum over a subtree, of some blocks, lane by lane, from where it lies."""
        total, gradients = self.partial.gradients.read(node), self.partial.gradients
        return [total[window] for window in gradients.windows(self.ownership.space.elements(blocks))]

    # ---- afterwards -------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait for the rest; then `replica.reduced` covers all that is held. Raises Broken, Halted."""
        if self._error is not None:
            raise self._error
        self.may_begin(True)
        self._final.update(range(len(self.buckets)))
        while self._taken < len(self.buckets):
            if not self._go_on():
                self._take_in()  # waits for it
        self._forward(self._sums)
        self._reduce_buffers()

    def _sum(self, blocks: Range, arrived: list[Tensor]) -> Tensor:
        """(lanes, elements)"""
        size = self.lanes * self.ownership.space.length(blocks)
        parts = {}
        for node in self.covers[self.rank]:
            own = self._own(node, blocks)
            parts[node] = (own[0], False) if self.lanes == 1 else (torch.cat(own), True)
        for peer, data in enumerate(arrived):
            for at, node in enumerate(self.covers[peer] if data.numel() else []):
                parts[node] = (data[at * size : (at + 1) * size], True)
        total = root(parts, self.partial.count, add=add_into_received)[0]
        if not self.ownership.shared or sum(map(len, arrived)) > size:
            total = self._put(total)
        return total.view(self.lanes, -1)

    def _put(self, total: Tensor) -> Tensor:
        """Behind the sums of the buckets before: so they go to the buddy from where they lie, and what else
        arrived in one piece of memory with it is not kept for its sake."""
        return self._place(len(total)).copy_(total)

    def _place(self, elements: int) -> Tensor:
        """The next so many of the memory that every step needs for its sums."""
        if self._room is None:
            blocks = [self.ownership.reduces(bucket, self.rank) for bucket in self.buckets]
            size = self.lanes * sum(map(self.ownership.space.length, blocks))
            # two have as much for it as for a gradient; of more, each finds its part where activations were
            memory = blank_again if self.ownership.shared else blank
            self._room = memory(size, torch.float32, self.group.device)
        self._filled += elements
        return self._room[self._filled - elements : self._filled]

    def _measure(self, chunk: Range, blocks: Range, total: Tensor) -> None:
        """Squared norms of the own chunk's blocks, of the first lane, while it is in the cache."""
        space = self.ownership.space
        if intersect(chunk, blocks) != chunk:  # or it is empty
            return
        origin, window = space.elements(blocks).start, space.elements(chunk)
        for part in torch.split(total[0, window.start - origin : window.stop - origin], space.block):
            self.norms.append(square_norm(part, self._wide))

    def _forward(self, sums: dict[Range, Tensor]) -> None:
        """Each owner sends its chunks to its buddy."""
        own, space = self.ownership, self.ownership.space
        held = own.held(self.rank)
        if own.shared:
            self.replica.reduced = {
                c: s[:, space.elements(c).start - space.elements(b).start :][:, : space.length(c)]
                for c in held
                for b, s in sums.items()
                if intersect(c, b) == c
            }
            return
        sends: list[Tensor | None] = [None] * self.world
        buddy = own.buddy[self.rank]
        mine = [sums[c].view(-1) for c in own.owned(self.rank) if c in sums]
        if buddy is not None and mine:
            sends[buddy] = joined(mine)
        kept = own.kept_for(self.rank)
        elements = [sum(space.length(c) for c in own.owned(r)) if r in kept else 0 for r in range(self.world)]
        arrived = self.group.exchange(sends, [self.lanes * n for n in elements], torch.float32)
        reduced = {c: sums[c] for c in own.owned(self.rank) if c in sums}
        for owner in kept:
            at = 0
            for chunk in own.owned(owner):
                size = self.lanes * space.length(chunk)
                if size:
                    reduced[chunk] = arrived[owner][at : at + size].view(self.lanes, -1)
                    at += size
        self.replica.reduced = {c: reduced[c] for c in held}

    def committed(self, applied: bool) -> None:
        """The step that it was for is committed, and was applied or skipped: what was summed up is let go
        before its parameters travel."""
        self._sums, self._room = {}, None
        del self.partial

    # ---- buffers ----------------------------------------------------------------------------

    def _reduce_buffers(self) -> None:
        """Buffers go to everyone: they are small, and no one keeps a part of them."""
        buffers, partial = self.replica.model.buffers, self.partial
        if not buffers:
            return
        size = buffers.flat_size()
        own = {n: partial.buffers.parts[n] for n in self.covers[self.rank]} if size else {}
        total = self.everywhere(own, size, torch.float64) if size else torch.empty(0, dtype=torch.float64)
        self.replica.new_buffers = (total, partial.others)
        if buffers.others:
            self._share_others()

    def everywhere(self, own: Mapping[Node, Tensor], length: int, dtype: torch.dtype) -> Tensor:
        """What is small enough for every rank to sum up by itself, in tree order: (length,), the same on all.
        own: the value of each subtree that this rank covers, (length,) each. Raises Broken, Halted."""
        parts = dict(own)
        mine = torch.cat([parts[n] for n in self.covers[self.rank]]) if parts else None
        sends = [None if r == self.rank else mine for r in range(self.world)]
        sizes = [0 if r == self.rank else len(c) * length for r, c in enumerate(self.covers)]
        for peer, data in enumerate(self.group.exchange(sends, sizes, dtype)):
            for at, node in enumerate(self.covers[peer] if peer != self.rank else []):
                parts[node] = data[at * length : (at + 1) * length]
        return root(parts, self.partial.count)

    def _share_others(self) -> None:
        """A member without a microbatch of this step learns the other buffers from one that has some."""
        have = [r for r, c in enumerate(self.covers) if c]
        if len(have) == self.world or self.replica.new_buffers is None:
            return
        buffers, (floats, values) = self.replica.model.buffers, self.replica.new_buffers
        mine = buffers.pack_others(values) if self.rank == have[0] else None
        sizes, lacking = [0] * self.world, self.rank not in have
        sizes[have[0]] = buffers.others_size() if lacking else 0
        sends = [mine if mine is not None and r not in have else None for r in range(self.world)]
        arrived = self.group.exchange(sends, sizes, torch.uint8)
        if lacking:
            self.replica.new_buffers = (floats, buffers.unpack_others(arrived[have[0]]))


def square_norm(block: Tensor, wide: Tensor) -> float:
    """The squared norm of a block, whose sums are short enough for fp32: a relative error of about 1e-6. In
    fp64 (`wide` is memory for it) where squares leave the range of fp32."""
    short = float(torch.dot(block, block))
    if SMALLEST < short < math.inf or (short == 0.0 and not block.any()):
        return short
    return float(wide[: block.numel()].copy_(block).square_().sum())


def add_into_received(left: tuple[Tensor, bool], right: tuple[Tensor, bool]) -> tuple[Tensor, bool]:
    """left + right, kept where one that arrived was: own partials must survive a broken step.

    The flag says that a tensor may be overwritten.
    """
    out = left[0] if left[1] else right[0] if right[1] else None
    return torch.add(left[0], right[0], out=out), True

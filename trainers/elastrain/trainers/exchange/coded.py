"""The reduce of one step with compression: what leaves a worker is packed, once, at its wire nodes.

    own sum of a wire node + its residual ──pack──▶ all-to-all ──unpack──▶ added in tree order
                         what that left out ──pack──▶ beside it: the next residual

What a buddy gets comes from the owner, added up, or *direct*, packed, from everybody as to the owner: as is
less to send; the sum is the same. Wire nodes are the units in which work is dealt. A rank treats its own ones
as if they had come from another, so the sum does not depend on who computed what. Nothing that is added up
above them is packed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Arrival, Group
from elastrain.trainers.exchange.compression import Codec, Residue
from elastrain.trainers.exchange.reduction import Reduction, add_into_received
from elastrain.trainers.exchange.residuals import Packed, Residuals, slots_of
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.tree import Node, root
from elastrain.trainers.training.replica import Replica


class CodedReduction(Reduction):
    """As Reduction. `residuals`: None for a codec without feedback."""

    def __init__(
        self,
        replica: Replica,
        group: Group,
        ownership: Ownership,
        has: Sequence[Sequence[int]],
        *,
        codec: Codec,
        residuals: Residuals | None,
    ) -> None:
        super().__init__(replica, group, ownership, has)
        self.codec, self.residuals = codec, residuals
        plan = replica.plan
        self.share = plan.samples(replica.step) / plan.batch  # of a full batch; exactly 1.0 for one
        self.direct = not ownership.shared and self._is_less_direct()
        self._mine: list[dict[Range, Tensor]] = []  # by bucket: what would go to this rank, by blocks
        # blocks summed here -> wire node -> its next residual
        self._left: dict[Range, dict[int, Packed]] = {}
        if residuals is not None:
            residuals.fetch(self.covers)

    def committed(self, applied: bool) -> None:
        super().committed(applied)
        if self.residuals is not None:
            assert self.replica.record is not None
            unused = self.replica.unused(int(self.replica.record["used"], 16))
            self.residuals.advance(self.covers, applied, unused)

    # ---- packing ----------------------------------------------------------------------------

    def _launch(self, bucket: Range) -> Arrival:
        if self.residuals is not None:
            self.residuals.wait()
        space, all_ = self.ownership.space, [self._gets(bucket, peer) for peer in range(self.world)]
        mine = all_[self.rank]
        # each run is packed once, whoever gets it: two workers, or owner and buddy
        messages = {
            b: self._message(space.elements(b)) for b in sorted({b for blocks in all_ for b in blocks})
        }
        self._mine.append({blocks: messages[blocks] for blocks in mine})
        sends = [
            torch.cat([messages[b] for b in blocks]) if blocks and peer != self.rank else None
            for peer, blocks in enumerate(all_)
        ]
        stride = sum(self._stride(space.length(blocks)) for blocks in mine)
        sizes = [len(c) * stride if p != self.rank else 0 for p, c in enumerate(self.covers)]
        return self.group.start_exchange(sends, sizes, torch.uint8)

    def _gets(self, bucket: Range, rank: int) -> list[Range]:
        """The parts of a bucket of which a rank gets everybody's sums."""
        own = self.ownership
        if not self.direct:
            found = [own.reduces(bucket, rank)]
        else:
            found = sorted(own.chunk(bucket, r) for r in (rank, *own.kept_for(rank)))
        return [b for b in found if b[0] < b[1]]

    def _is_less_direct(self) -> bool:
        """Is it fewer bytes that all send to buddies as well, than that owners send sums and residuals on?"""
        block, nodes = self.ownership.space.block, sum(map(len, self.covers))
        left = self.residuals.kind.size(block) if self.residuals is not None else 0
        there = nodes * (self.codec.size(block) + left) * (self.world - 1) / self.world
        return there < 4 * block + nodes * left

    def _stride(self, elements: int) -> int:
        """Bytes of one wire node in a message."""
        left = self.residuals.kind.size(elements) if self.residuals is not None else 0
        return self.codec.size(elements) + left

    def _message(self, window: slice) -> Tensor:
        """A run of all own wire nodes, one behind the other: (bytes,) u8"""
        mine = self.covers[self.rank] if window.start < window.stop else []
        parts = [part for node in mine for part in self._packed(node, window)]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def _packed(self, node: Node, window: slice) -> list[Tensor]:
        values = self.partial.gradients.read(node)[window]
        if self.residuals is None:
            return [self.codec.encode(values)]
        values = values + self._carried(node, window)
        data = self.codec.encode(values)
        return [data, self._leave(node, window, values.sub_(self.codec.decode(data, values.numel())))]

    def _carried(self, node: Node, window: slice) -> Tensor:
        """What the steps before left out, as far as it counts in this one."""
        assert self.residuals is not None
        carried = self.residuals.current[node.start].cut(window).values()
        return carried if self.share == 1.0 else carried.mul_(self.share)

    def _leave(self, node: Node, window: slice, rest: Tensor) -> Tensor:
        """Keep what this step leaves out, in the measure of a full batch. rest: in that of this step's batch;
        is written to. Returns it packed for the owner."""
        assert self.residuals is not None
        if self.share != 1.0:
            rest.div_(self.share)
        kind = self.residuals.kind
        data = kind.encode(rest, self.replica.step)
        self.residuals.next[node.start].put(window, Packed.of(kind, data, rest.numel()))
        return data

    # ---- unpacking --------------------------------------------------------------------------

    def _runs(self, bucket: Range, arrived: list[Tensor]) -> Iterator[tuple[Range, list[Tensor]]]:
        for blocks in self._gets(bucket, self.rank):
            stride = self._stride(self.ownership.space.length(blocks))
            cuts = [len(c) * stride if p != self.rank else 0 for p, c in enumerate(self.covers)]
            yield blocks, [data[:cut] for data, cut in zip(arrived, cuts, strict=True)]
            arrived = [data[cut:] for data, cut in zip(arrived, cuts, strict=True)]

    def _sum(self, blocks: Range, arrived: list[Tensor]) -> Tensor:
        size = self.ownership.space.length(blocks)
        data = self._unpacked(blocks, arrived)
        parts = {node: (self.codec.decode(d, size), True) for node, d in data.items()}
        return root(parts, self.partial.count, add=add_into_received)[0].view(1, -1)

    def _unpacked(self, blocks: Range, arrived: list[Tensor]) -> dict[Node, Tensor]:
        """What all wire nodes sent of some blocks; their residuals are put aside."""
        size = self.ownership.space.length(blocks)
        packed, stride = self.codec.size(size), self._stride(size)
        mine = self._mine[self._taken][blocks]
        messages = [mine if p == self.rank else data for p, data in enumerate(arrived)]
        found: dict[Node, Tensor] = {}
        left = self._left.setdefault(blocks, {})
        for nodes, message in zip(self.covers, messages, strict=True):
            for at, node in enumerate(nodes):
                data = message[at * stride : (at + 1) * stride]
                found[node] = data[:packed]
                if self.residuals is not None:
                    left[node.start] = Packed.of(self.residuals.kind, data[packed:], size)
        return found

    def _forward(self, sums: dict[Range, Tensor]) -> None:
        if self.direct:  # all of it is here
            self.replica.reduced = {c: sums[c] for c in self.ownership.held(self.rank)}
            if self.residuals is not None:
                unit = self.residuals.unit
                self.replica.next_states = {c: _by_slot(left, unit) for c, left in self._left.items()}
            return
        self._forward_sums(sums)
        if self.residuals is not None:
            self._forward_residuals(self.residuals)

    def _forward_sums(self, sums: dict[Range, Tensor]) -> None:
        super()._forward(sums)

    def _forward_residuals(self, residuals: Residuals) -> None:
        """To the buddy; and what is kept here becomes current with the commit."""
        own, space = self.ownership, self.ownership.space
        starts = sorted(node.start for nodes in self.covers for node in nodes)
        kept: dict[Range, dict[int, Packed]] = {}
        if own.shared:
            for blocks, left in self._left.items():
                origin = space.elements(blocks).start
                for chunk in (c for c in own.held(self.rank) if blocks[0] <= c[0] < blocks[1]):
                    window = space.elements(chunk)
                    inside = slice(window.start - origin, window.stop - origin)
                    kept[chunk] = {start: packed.cut(inside) for start, packed in left.items()}
        else:
            kept = {chunk: left for chunk, left in self._left.items() if chunk[0] < chunk[1]}
            kept |= self._from_owners(kept, starts, residuals.kind)
        self.replica.next_states = {chunk: _by_slot(left, residuals.unit) for chunk, left in kept.items()}

    def _from_owners(
        self, mine: dict[Range, dict[int, Packed]], starts: list[int], kind: Residue
    ) -> dict[Range, dict[int, Packed]]:
        """Owners send to their buddies: chunk by chunk, wire node by wire node."""
        own, space = self.ownership, self.ownership.space
        sends: list[Tensor | None] = [None] * self.world
        buddy = own.buddy[self.rank]
        if buddy is not None and mine:
            chunks = [c for c in own.owned(self.rank) if c in mine]
            sends[buddy] = torch.cat([b for c in chunks for start in starts for b in mine[c][start].bytes])
        owners = own.kept_for(self.rank)
        bytes_of = {r: sum(kind.size(space.length(c)) for c in own.owned(r)) * len(starts) for r in owners}
        arrived = self.group.exchange(sends, [bytes_of.get(r, 0) for r in range(self.world)], torch.uint8)
        found: dict[Range, dict[int, Packed]] = {}
        for owner in owners:
            at = 0
            for chunk in (c for c in own.owned(owner) if c[0] < c[1]):
                length = space.length(chunk)
                step = kind.size(length)
                pieces = [arrived[owner][at + n * step : at + (n + 1) * step] for n in range(len(starts))]
                found[chunk] = {s: Packed.of(kind, p, length) for s, p in zip(starts, pieces, strict=True)}
                at += step * len(starts)
        return found


def _by_slot(left: dict[int, Packed], unit: int) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for start, packed in left.items():
        codes, scales = slots_of(start, unit, packed.kind)
        state |= {codes.name: packed.codes, scales.name: packed.scales}
    return state

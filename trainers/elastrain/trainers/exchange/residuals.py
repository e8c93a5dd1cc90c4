"""What compression left out, kept for the next step (error feedback).

The residual of a wire node belongs to the node, not to a worker: it is a slot of every chunk's state, kept by
owner and buddy, so that it changes hands, is compared, saved, and rolled back like the optimizer's. It is
kept in 4 or 2 bits for each element, rounded by turns (compression.Residue); what that leaves out is
forgotten. Whoever computes a node keeps its residual for itself too, and asks the owners for it only
when it did not compute the node in the step before.

It is in the measure of a full batch: in a short one it counts as much less as the batch is shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Arrival, Group
from elastrain.trainers.exchange.compression import GROUP, Residue
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.memory import blank
from elastrain.trainers.numerics.states import ChunkStates, Slot
from elastrain.trainers.numerics.tree import Node


def slots(count: int, unit: int, kind: Residue) -> list[Slot]:
    """Of all wire nodes of a step of `count` microbatches; `unit`: microbatches of each."""
    return [slot for start in range(0, count, unit) for slot in slots_of(start, unit, kind)]


def slots_of(start: int, unit: int, kind: Residue) -> tuple[Slot, Slot]:
    """Codes and scales of the wire node that begins with microbatch `start`."""
    name = f"residual.{unit}.{start}.{kind.bits}"
    return Slot(name, torch.uint8, kind.per), Slot(f"{name}.scale", per=GROUP)


@dataclass(frozen=True)
class Packed:
    """A residual, of some run of elements or of all."""

    kind: Residue
    codes: Tensor  # (elements / kind.per,) u8
    scales: Tensor  # (elements / 64,) f32

    @classmethod
    def blank(cls, kind: Residue, elements: int) -> Packed:
        codes = blank(elements // kind.per, torch.uint8)
        return cls(kind, codes, blank(elements // GROUP, torch.float32))

    @classmethod
    def of(cls, kind: Residue, data: Tensor, elements: int) -> Packed:
        """data: (kind.size(elements),) u8"""
        end = elements // kind.per
        return cls(kind, data[:end], data[end:].view(torch.float32))

    @property
    def bytes(self) -> list[Tensor]:
        return [self.codes, self.scales.view(torch.uint8)]

    def cut(self, window: slice) -> Packed:
        codes, scales = (
            t[window.start // per : window.stop // per]
            for t, per in ((self.codes, self.kind.per), (self.scales, GROUP))
        )
        return Packed(self.kind, codes, scales)

    def put(self, window: slice, other: Packed) -> None:
        here = self.cut(window)
        here.codes.copy_(other.codes)
        here.scales.copy_(other.scales)

    def values(self) -> Tensor:
        """(elements,) f32"""
        return self.kind.decode(self.codes, self.scales)


class Residuals:
    """Of the wire nodes that this rank computes, in one generation; named by their first microbatch."""

    def __init__(
        self, kind: Residue, states: ChunkStates, unit: int, group: Group, ownership: Ownership
    ) -> None:
        self.kind, self.states, self.unit, self.group, self.ownership = kind, states, unit, group, ownership
        self.rank, self.space = group.rank, ownership.space
        self.current: dict[int, Packed] = {}
        self.next: dict[int, Packed] = {}
        self._at: list[set[int]] = [
            set() for _ in range(group.world)
        ]  # by rank: nodes whose residual is there
        self._needs: list[list[int]] = []
        self._arrival: Arrival | None = None

    def fetch(self, covers: Sequence[Sequence[Node]]) -> None:
        """Begin to bring what is needed in this step to whoever computes it. Every member calls it.

        covers[r]: the wire nodes that rank r computes.
        """
        self.next = {n.start: Packed.blank(self.kind, self.space.size) for n in covers[self.rank]}
        needs = [[n.start for n in c if n.start not in at] for c, at in zip(covers, self._at, strict=True)]
        self._needs = needs
        if not any(needs):
            return
        world, mine = self.group.world, needs[self.rank]
        sends: list[Tensor | None] = [None] * world
        for peer in range(world):
            parts = [
                b for c, start in self._order(self.rank, needs[peer]) for b in self._kept(c, start).bytes
            ]
            sends[peer] = torch.cat(parts) if parts and peer != self.rank else None
        sizes = [
            sum(self.kind.size(self.space.length(c)) for c, _ in self._order(owner, mine))
            * (owner != self.rank)
            for owner in range(world)
        ]
        self._arrival = self.group.start_exchange(sends, sizes, torch.uint8)

    def wait(self) -> None:
        """Until what was fetched is here. Raises Broken, Halted."""
        if self._arrival is None:
            return
        arrived, self._arrival = self._arrival(), None
        mine = self._needs[self.rank]
        for start in mine:
            self.current[start] = Packed.blank(self.kind, self.space.size)
        for owner in range(self.group.world):
            at = 0
            for chunk, start in self._order(owner, mine):
                window = self.space.elements(chunk)
                length = self.space.length(chunk)
                if owner == self.rank:
                    came = self._kept(chunk, start)
                else:
                    came = Packed.of(self.kind, arrived[owner][at : at + self.kind.size(length)], length)
                    at += self.kind.size(length)
                self.current[start].put(window, came)

    def _order(self, owner: int, starts: Sequence[int]) -> Iterator[tuple[Range, int]]:
        """In which the residuals of some nodes come from an owner: (chunk, node)."""
        for start in starts:
            for chunk in self.ownership.owned(owner):
                if chunk[0] < chunk[1]:
                    yield chunk, start

    def _kept(self, chunk: Range, start: int) -> Packed:
        codes, scales = slots_of(start, self.unit, self.kind)
        state = self.states.read(chunk)
        return Packed(self.kind, state[codes.name], state[scales.name])

    def advance(self, covers: Sequence[Sequence[Node]], applied: bool, unused: Sequence[slice]) -> None:
        """The step is committed. If it was skipped, what was left out before it still is; and so it is of
        parameters that no microbatch used (`unused`), since nothing that was sent of them is made use of."""
        found = self.next if applied else self.current
        for start, packed in self.next.items() if applied else ():
            for window in unused:
                packed.put(window, self.current[start].cut(window))
        self.current = {n.start: found[n.start] for n in covers[self.rank]}
        self._at = [{n.start for n in c} for c in covers]
        self.next = {}

"""How an update travels from the owners of chunks to everybody: packed, with error feedback.

    x  = x̂ + e           the parameters of the owner: what everybody has, and what was left out so far
    x' = rule(x)          the optimizer's update
    q  = pack(x' - x̂)     what travels
    x̂' = x̂ + unpack(q)    everybody alike: the next step is computed from it, it is evaluated and saved
    e' = x' - x̂'          what is left out, a slot of the chunk's state, kept by owner and buddy

EF21-P: Gruntkowska, Tyurin and Richtarik, "EF21-P and Friends: Improved Theoretical Communication Complexity
for Distributed Optimization with Bidirectional Compression" (ICML 2023), algorithm 1. e never travels, but
when chunks change hands. Elements are packed in groups that no chunk border cuts, so who owns what changes no
bit; and whoever keeps a chunk packs as its owner does, so that all have the same x̂.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.compression import Codec, Half, Int8
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import FlatSpace, Ownership
from elastrain.trainers.numerics.states import Slot
from elastrain.trainers.spec import JobSpec

BEHIND = Slot("behind")


class Downward:
    """Of one worker; `packed` and `moved` are of the last step."""

    def __init__(self, codec: Codec, space: FlatSpace, params: Tensor) -> None:
        """params: (size,) f32, what everybody has."""
        self.codec, self.space, self.params = codec, space, params
        self.moved = False  # was it applied, or skipped?
        self.packed: dict[Range, Tensor] = {}  # chunk that is kept here -> (bytes,) u8

    @classmethod
    def of(cls, spec: JobSpec, space: FlatSpace, params: Tensor) -> Downward | None:
        """None: parameters travel as they are."""
        if spec.compression_down == "none":
            return None
        return cls(Int8() if spec.compression_down == "int8" else Half(torch.bfloat16), space, params)

    def begin(self, applied: bool) -> None:
        """A step is committed."""
        self.moved, self.packed = applied, {}

    def update(self, chunk: Range, behind: Tensor, stays: Sequence[slice], rule: Callable[[], None]) -> None:
        """behind: e, (elements,) f32, is written to. stays: elements of the chunk that the step does not use,
        which stay as they are. rule: makes the optimizer's update of the chunk."""
        params, before = self.params[self.space.elements(chunk)], [behind[part].clone() for part in stays]
        shown = params.clone()
        params.add_(behind)
        for part in stays:
            params[part] = shown[part]
        rule()
        data = self.codec.encode(params - shown)
        shown.add_(self.codec.decode(data, params.numel()))
        torch.sub(params, shown, out=behind)
        params.copy_(shown)
        for part, value in zip(stays, before, strict=True):
            behind[part] = value
        self.packed[chunk] = data

    def start(self, group: Group, ownership: Ownership) -> Callable[[], None]:
        """Everybody gets the updates of the chunks that it does not keep, begun now, finished by calling what
        is returned. Raises Broken, Halted, and then leaves the parameters as they were."""
        rank, buddy = group.rank, ownership.buddy[group.rank]
        owned = [[c for c in ownership.owned(r) if c[0] < c[1]] for r in range(group.world)]
        kept = {rank, *ownership.kept_for(rank)}
        mine = torch.cat([self.packed[c] for c in owned[rank]]) if self.moved and owned[rank] else None
        sends = [None if r in (rank, buddy) else mine for r in range(group.world)]
        sizes = [0 if r in kept or not self.moved else sum(map(self._size, c)) for r, c in enumerate(owned)]
        arrival = group.start_exchange(sends, sizes, torch.uint8)

        def finish() -> None:
            arrived = arrival()
            for owner, chunks in enumerate(owned):
                at = 0
                for chunk in chunks if sizes[owner] else ():
                    data = arrived[owner][at : at + self._size(chunk)]
                    length = self.space.length(chunk)
                    self.params[self.space.elements(chunk)].add_(self.codec.decode(data, length))
                    at += self._size(chunk)

        return finish

    def _size(self, chunk: Range) -> int:
        return self.codec.size(self.space.length(chunk))

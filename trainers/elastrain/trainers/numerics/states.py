"""What owner and buddy keep of each chunk beside its parameters: the optimizer's state, and more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import joined
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import FlatSpace, intersect, subtract
from elastrain.trainers.numerics.memory import blank
from elastrain.trainers.numerics.optimizers import Rule


@dataclass(frozen=True)
class Slot:
    """One kind of values. `per`: elements of the flat space that share an entry; divides chunks.ALIGN."""

    name: str
    dtype: torch.dtype = torch.float32
    per: int = 1

    def entries(self, elements: int) -> int:
        """How many belong to a run of elements that begins at a multiple of `per`."""
        return -(-elements // self.per)

    def window(self, start: int, stop: int) -> slice:
        """Those of the elements start..stop-1; start is a multiple of `per`."""
        return slice(start // self.per, self.entries(stop))


class ChunkStates:
    """State by block range: slot -> (entries,). `own` is what the optimizer's rule works with: one f32 per
    element; `more` begins with zeros."""

    def __init__(self, space: FlatSpace, rule: Rule, more: Sequence[Slot] = ()) -> None:
        self.space, self.rule = space, rule
        self.own = [Slot(name) for name in rule.slots]
        self.slots = {slot.name: slot for slot in (*self.own, *more)}
        self.pieces: dict[Range, dict[str, Tensor]] = {}

    @property
    def more(self) -> bool:
        """Is there state that is not the optimizer's? A reduce needs that as well."""
        return len(self.slots) > len(self.own)

    def begin(self, chunks: Sequence[Range]) -> None:
        """Fresh state of exactly these chunks. Of each slot it lies in one piece of memory, so that what
        changes hands later on, whichever part of it that is, is sent from where it lies."""
        chunks = sorted(chunks)
        size = sum(self.space.length(chunk) for chunk in chunks)
        whole = {
            slot.name: torch.zeros(slot.entries(size), dtype=slot.dtype)
            for slot in self.slots.values()
            if slot not in self.own
        }
        like = blank(size, torch.float32)
        whole |= {slot.name: self.rule.init(slot.name, like) for slot in self.own}
        self.pieces, at = {}, 0
        for chunk in chunks:
            end = at + self.space.length(chunk)
            self.put(chunk, {name: whole[name][slot.window(at, end)] for name, slot in self.slots.items()})
            at = end

    def put(self, blocks: Range, state: dict[str, Tensor]) -> None:
        self.pieces[blocks] = state

    def ranges(self) -> list[Range]:
        return sorted(self.pieces)

    def read(self, blocks: Range) -> dict[str, Tensor]:
        """The state of any range that is held, put together from pieces. Raises KeyError for a gap."""
        if blocks in self.pieces:
            return self.pieces[blocks]
        found: dict[Range, dict[str, Tensor]] = {}
        for piece in [p for p in self.ranges() if intersect(p, blocks)]:
            for part in [p for p in subtract(blocks, list(found)) if intersect(piece, p)]:
                common = intersect(piece, part)
                if common is not None:
                    found[common] = self._cut(piece, common)
        if subtract(blocks, list(found)):
            raise KeyError(f"blocks {subtract(blocks, list(found))} of {blocks} are not held here")
        ordered = [found[r] for r in sorted(found)]
        return {s: joined([o[s] for o in ordered]) for s in self.slots}

    def _cut(self, piece: Range, common: Range) -> dict[str, Tensor]:
        origin = self.space.elements(piece).start
        window, state = self.space.elements(common), self.pieces[piece]
        start, stop = window.start - origin, window.stop - origin
        return {name: state[name][slot.window(start, stop)] for name, slot in self.slots.items()}

    def relayout(self, chunks: Sequence[Range]) -> None:
        """Keep exactly these chunks; what else is held is dropped. Memory that is kept whole is cut without a
        copy; of what is kept in part a copy is made, so that the rest becomes free."""
        used: Counter[int] = Counter()  # bytes that stay, by storage
        for piece, state in self.pieces.items():
            stays = sum(self.space.length(c) for c in (intersect(piece, chunk) for chunk in chunks) if c)
            for name, value in state.items():
                entries = self.slots[name].entries(stays)
                used[value.untyped_storage().data_ptr()] += entries * value.element_size()

        def own(value: Tensor) -> Tensor:
            storage = value.untyped_storage()
            return (
                value if used.get(storage.data_ptr(), storage.nbytes()) >= storage.nbytes() else value.clone()
            )

        self.pieces = {c: {s: own(t) for s, t in self.read(c).items()} for c in chunks}

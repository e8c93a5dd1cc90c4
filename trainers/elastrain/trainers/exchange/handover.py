"""From one generation to the next: only what changes hands travels, and nobody waits for what it can do
without.

    buffers ─▶ parameters, to those who lack them ─▶ state of chunks, to their new keepers ─▶ all have theirs
                                       └─▶ first step: gradients ─────────▶ reduce ─▶ commit ◀──┘

Everybody knows from the opening who holds which blocks at which step, and works out the same plan. To compute
a gradient takes parameters alone: state travels while gradients are made. The old layout is kept until
everyone has the new one; a failure before that starts again from what is held then, which is never less.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Arrival, Broken, Group, Halted, joined
from elastrain.trainers.exchange.transfers import Transfer, plan
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.numerics.memory import blank_again
from elastrain.trainers.numerics.states import Slot
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.step import Exchange


def catch_up(replica: Replica, opening: Opening) -> None:
    """Bring this member to the opening's step: apply the record that it missed, or learn the cursor."""
    assert opening.cursor is not None
    cursor = Cursor.from_json(opening.cursor)
    if replica.step == opening.step - 1 and opening.record is not None:
        replica.apply(opening.record)
    elif replica.step != opening.step:
        replica.forget()
    if cursor.step == opening.step - 1 and opening.record is not None:
        cursor = replica.moved(cursor, opening.record, replica.verdict(opening.record))
    replica.cursor = cursor
    replica.record = opening.record or replica.record
    replica.touched = True  # a joiner is about to get parameters that the seed does not give


class Handover:
    """Of one generation, as one member has it. Made as soon as this member can compute a gradient; until it
    is over, parameters may be read and not changed. Every method raises Broken or Halted."""

    def __init__(self, replica: Replica, opening: Opening, group: Group, ownership: Ownership) -> None:
        self.replica, self.group, self.ownership = replica, group, ownership
        self.generation = opening.generation
        # First what all have alike: a joiner that holds a chunk counts as a survivor, should this generation
        # break before it is sealed, and a survivor has everything that nobody else keeps for it.
        send_common(replica, opening, group)
        self._sent, self._come = _by_peer(plan(opening, ownership, group.rank), group)
        self._all_have: Arrival | None = None  # theirs; begun once this member has its own
        whole = [rank for rank, worker in enumerate(opening.workers) if worker in opening.whole]
        self._sending = self._from_whole(whole) if whole else []
        self._kept = None if whole else self._to_keepers()
        slots = replica.states.slots.values()
        self._slots = {slot.name: self._start(slot, self._state_of(slot.name)) for slot in slots}
        if not whole:
            self._from_keepers()

    def here(self, wait: bool = False) -> bool:
        """Has all arrived that this member is to keep? It holds it from then on; all of it, or nothing. wait:
        until it has."""
        if self._all_have is None and (wait or self._ready()):
            for arrival in self._sending:
                arrival()
            slots = {name: arrival() for name, arrival in self._slots.items()}
            self._take_in(slots, self._kept() if self._kept is not None else None)
            self._all_have = self.group.start_barrier()
        return self._all_have is not None

    def _ready(self) -> bool:
        arrivals = [*self._sending, *self._slots.values(), *([self._kept] if self._kept is not None else [])]
        return all(arrival.ready() for arrival in arrivals)

    def over(self, wait: bool = False) -> bool:
        """Has everybody what it is to keep? Then all else is dropped. wait: until they have."""
        if not self.here(wait) or self._all_have is None or not (wait or self._all_have.ready()):
            return False
        self._all_have()
        self.replica.states.relayout(self.ownership.held(self.group.rank))
        self.replica.layout = self.generation
        return True

    def take_what_has_come(self) -> None:
        """The generation breaks: the more is held, the less is lost with whom it broke for."""
        with suppress(Broken, Halted):
            self.here()

    # ---- parameters -------------------------------------------------------------------------

    def _from_whole(self, whole: list[int]) -> list[Arrival]:
        """To those who lack some, all of them, another part from each who has them. Returns when they are
        here; with what is still to be sent."""
        vectors = [self.replica.model.params, *self.replica.gathered.values()]
        lacking = [r for r in range(self.group.world) if r not in whole]
        arrivals = [self._share_out(vector, whole, lacking) for vector in vectors if lacking]
        if self.group.rank in whole:
            return arrivals
        for vector, arrival in zip(vectors, arrivals, strict=True):
            for rank, part in enumerate(arrival()):
                if rank in whole:
                    vector[_share(vector, whole, rank)] = part
        self.replica.whole = True
        return []

    def _share_out(self, vector: Tensor, whole: list[int], lacking: list[int]) -> Arrival:
        """Each of those who have it all sends another part of it, to all who lack it."""
        rank, ranks = self.group.rank, range(self.group.world)
        mine = vector[_share(vector, whole, rank)] if rank in whole else None
        sends = [mine if r in lacking else None for r in ranks]
        shares = {r: _share(vector, whole, r) for r in whole} if rank in lacking else {}
        sizes = [shares[r].stop - shares[r].start if r in shares else 0 for r in ranks]
        # a joiner has no gradient yet: where that is to lie, parameters arrive
        into = blank_again(sum(sizes), vector.dtype, self.group.device)
        return self.group.start_exchange(sends, sizes, vector.dtype, into)

    def _to_keepers(self) -> Arrival:
        """Where nobody has them all: new keepers get theirs as they get the state."""
        space, params = self.replica.model.space, self.replica.model.params
        return self._start(Slot("param"), lambda blocks: params[space.elements(blocks)])

    def _from_keepers(self) -> None:
        """Everybody gets them all from their keepers, and what else of their state is common, which these
        have once they have their chunks."""
        self.here(wait=True)
        self.replica.whole = False
        Exchange(self.replica, self.group, self.ownership, ()).gather()

    # ---- the state of chunks ----------------------------------------------------------------

    def _state_of(self, slot: str) -> Callable[[Range], Tensor]:
        return lambda blocks: self.replica.states.read(blocks)[slot]

    def _start(self, kind: Slot, row: Callable[[Range], Tensor]) -> Arrival:
        """One all-to-all, from where the values lie."""
        space = self.replica.model.space
        sends = [joined([row(t.blocks) for t in peer]) if peer else None for peer in self._sent]
        sizes = [sum(kind.entries(space.length(t.blocks)) for t in peer) for peer in self._come]
        return self.group.start_exchange(sends, sizes, kind.dtype)

    def _take_in(self, arrived: dict[str, list[Tensor]], kept: list[Tensor] | None) -> None:
        """Where state arrived it stays. kept: parameters of the same chunks, where nobody has all."""
        space, states, params = self.replica.model.space, self.replica.states, self.replica.model.params
        for source, peer in enumerate(self._come):
            at = 0
            for transfer in peer:
                end = at + space.length(transfer.blocks)
                windows = {name: slot.window(at, end) for name, slot in states.slots.items()}
                states.put(transfer.blocks, {name: arrived[name][source][w] for name, w in windows.items()})
                if kept is not None:
                    params[space.elements(transfer.blocks)] = kept[source][at:end]
                self.replica.layout = 0
                at = end


def _share(vector: Tensor, whole: list[int], rank: int) -> slice:
    """The part of a vector that one of those who have it sends."""
    at, parts, size = whole.index(rank), len(whole), vector.numel()
    return slice(size * at // parts, size * (at + 1) // parts)


def _by_peer(transfers: list[Transfer], group: Group) -> tuple[list[list[Transfer]], list[list[Transfer]]]:
    """What one sends to each rank, and what one gets from each, in the same order on both sides."""
    sent: list[list[Transfer]] = [[] for _ in range(group.world)]
    come: list[list[Transfer]] = [[] for _ in range(group.world)]
    for transfer in transfers:
        if transfer.source == group.rank:
            sent[transfer.target].append(transfer)
        elif transfer.target == group.rank:
            come[transfer.source].append(transfer)
    return sent, come


def send_common(replica: Replica, opening: Opening, group: Group) -> None:
    """The first survivor sends its buffers, and what else all have alike, to every joiner. Their bytes,
    whatever their types."""
    bank = [*replica.model.buffers.base.values(), *(v for _, v in sorted(replica.common.items()))]
    survivors = opening.survivors()
    joiners = [r for r in range(group.world) if r not in survivors]
    if not bank or not joiners:
        return
    length = sum(b.numel() * b.element_size() for b in bank)
    sends: list[Tensor | None] = [None] * group.world
    if group.rank == survivors[0]:
        mine = torch.cat([_bytes(b) for b in bank])
        sends = [mine if r in joiners else None for r in range(group.world)]
    sizes = [length if group.rank in joiners and r == survivors[0] else 0 for r in range(group.world)]
    arrived: Any = group.exchange(sends, sizes, torch.uint8)[survivors[0]]
    if group.rank in joiners:
        at = 0
        for base in bank:
            size = base.numel() * base.element_size()
            base.copy_(arrived[at : at + size].clone().view(base.dtype).view(base.shape))
            at += size
        replica.model.buffers.reset()


def _bytes(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)

"""From one generation to the next: only what changes hands travels.

Everybody knows from the opening who holds which blocks at which step, and works out the same plan. The old
layout is kept until a barrier shows that everyone has the new one; a failure before that starts again from
what is held then, which is never less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Arrival, Group, joined
from elastrain.trainers.exchange.transfers import Transfer, plan
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.cursor import Cursor
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


def hand_over(
    replica: Replica,
    opening: Opening,
    group: Group,
    ownership: Ownership,
    meanwhile: Callable[[], bool] = lambda: False,
) -> None:
    """Move chunks to their new keepers, and everything else to the joiners; returns when all have it.

    meanwhile: called again and again while chunks travel; False: nothing is left to do. It may read
    parameters, and changes none.
    """
    rank = group.rank
    # First what all have alike: a joiner that holds a chunk counts as a survivor, should this generation
    # break before it is sealed, and a survivor has everything that nobody else keeps for it.
    send_common(replica, opening, group)
    _move_chunks(replica, plan(opening, ownership, rank), group, meanwhile)
    if len(opening.whole) < group.world:
        replica.whole = replica.whole and opening.workers[rank] in opening.whole
        Exchange(replica, group, ownership, opening.workers).gather()
    group.barrier()
    replica.states.relayout(ownership.held(rank))
    replica.layout = opening.generation


def _move_chunks(
    replica: Replica, transfers: list[Transfer], group: Group, meanwhile: Callable[[], bool]
) -> None:
    """One all-to-all for the parameters and one for each slot, all under way at once, from where the values
    lie to where they stay. What arrived is held only when all of it is here."""
    space, states = replica.model.space, replica.states
    sent, come = _by_peer(transfers, group)
    kinds = [Slot("param"), *states.slots.values()]

    def start(kind: Slot, row: Callable[[Range], Tensor]) -> Arrival:
        sends = [joined([row(t.blocks) for t in peer]) if peer else None for peer in sent]
        sizes = [sum(kind.entries(space.length(t.blocks)) for t in peer) for peer in come]
        return group.start_exchange(sends, sizes, kind.dtype)

    def of(slot: str) -> Callable[[Range], Tensor]:
        return lambda blocks: states.read(blocks)[slot]

    under_way = [start(kinds[0], lambda blocks: replica.model.params[space.elements(blocks)])]
    under_way += [start(kind, of(kind.name)) for kind in kinds[1:]]
    while not all(arrival.ready() for arrival in under_way) and meanwhile():
        pass
    params, *slots = [arrival() for arrival in under_way]
    for source, peer in enumerate(come):
        at = 0
        for transfer in peer:
            end = at + space.length(transfer.blocks)
            replica.model.params[space.elements(transfer.blocks)] = params[source][at:end]
            arrived = {k.name: came[source] for k, came in zip(kinds[1:], slots, strict=True)}
            state = {name: arrived[name][slot.window(at, end)] for name, slot in states.slots.items()}
            states.put(transfer.blocks, state)
            replica.layout = 0
            at = end


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

"""From one generation to the next: only what changes hands travels.

Everybody knows from the opening who holds which blocks at which step, and works out the same plan. The old
layout is kept until a barrier shows that everyone has the new one; a failure before that starts again from
what is held then, which is never less.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.balance import Balance, Pace
from elastrain.trainers.chunks import Domain, Ownership
from elastrain.trainers.collectives import Group, joined
from elastrain.trainers.cursor import Cursor, advance
from elastrain.trainers.messages import Json, Range
from elastrain.trainers.replica import Replica
from elastrain.trainers.step import Exchange


@dataclass(frozen=True)
class Opening:
    """What the coordinator says when it opens a generation."""

    generation: int
    members: tuple[Json, ...]  # rank order: {worker, group, node, address}
    step: int
    cursor: Json | None
    record: Json | None
    held: dict[str, list[Range]]
    whole: tuple[str, ...]
    done: dict[str, list[int]]
    restore: Json | None  # {"manifest": None | {...}, "prefix": "..."}; None: go on
    saved_step: int
    pace: Json | None = None  # what is known of the members' speeds (balance.py)
    hold: bool = False  # compute nothing: make a checkpoint, and wait

    @classmethod
    def from_json(cls, data: Json) -> Opening:
        return cls(
            data["generation"],
            tuple(data["members"]),
            data["step"],
            data["cursor"],
            data["record"],
            {w: [(a, b) for a, b in ranges] for w, ranges in data["held"].items()},
            tuple(data["whole"]),
            data["done"],
            data["restore"],
            data["saved_step"],
            data.get("pace"),
            data.get("hold", False),
        )

    @property
    def workers(self) -> list[str]:
        return [str(member["worker"]) for member in self.members]

    def rank_of(self, worker: str) -> int:
        return self.workers.index(worker)

    def balance(self) -> Balance:
        """The assignment as all members begin with it."""
        workers = self.workers
        return Balance(workers, Pace.from_json(self.pace, workers) if self.pace is not None else Pace())

    def domains(self) -> list[Domain]:
        return [Domain(m["worker"], m["group"], m["node"]) for m in self.members]


@dataclass(frozen=True)
class Transfer:
    source: int
    target: int
    blocks: Range


def plan(opening: Opening, ownership: Ownership) -> list[Transfer]:
    """Who sends which blocks to whom: for each block that a member is to keep and does not hold, the next
    holder after it in rank order."""
    starts, holders = _holders([opening.held.get(w, []) for w in opening.workers])
    transfers: list[Transfer] = []
    for target in range(ownership.world):
        for chunk in ownership.held(target):
            transfers += _lacking(chunk, target, starts, holders)
    return transfers


def _holders(held: list[list[Range]]) -> tuple[list[int], list[list[int]]]:
    """The flat space cut wherever somebody's range begins or ends: (first block, ranks that hold it) of each
    piece, in order. held: by rank; ranges may overlap after an interrupted handover."""
    changes: dict[int, list[tuple[int, int]]] = {0: []}  # block -> [(rank, +1 or -1)]
    for rank, ranges in enumerate(held):
        for start, stop in ranges:
            changes.setdefault(start, []).append((rank, 1))
            changes.setdefault(stop, []).append((rank, -1))
    counts: Counter[int] = Counter()
    starts, holders = sorted(changes), []
    for block in starts:
        for rank, change in changes[block]:
            counts[rank] += change
            if not counts[rank]:
                del counts[rank]
        holders.append(sorted(counts))
    return starts, holders


def _lacking(chunk: Range, target: int, starts: list[int], holders: list[list[int]]) -> list[Transfer]:
    """What of a chunk has to come to `target`, in order."""
    found: list[Transfer] = []
    for at in range(bisect_right(starts, chunk[0]) - 1, bisect_left(starts, chunk[1])):
        ranks, stop = holders[at], starts[at + 1] if at + 1 < len(starts) else chunk[1]
        part = (max(chunk[0], starts[at]), min(chunk[1], stop))
        if target in ranks:
            continue
        if not ranks:
            raise AssertionError(f"blocks {part} are held by nobody: the coordinator should have restored")
        source = ranks[bisect_right(ranks, target) % len(ranks)]
        if found and found[-1].source == source and found[-1].blocks[1] == part[0]:
            part = (found.pop().blocks[0], part[1])
        found.append(Transfer(source, target, part))
    return found


def catch_up(replica: Replica, opening: Opening) -> None:
    """Bring this member to the opening's step: apply the record that it missed, or learn the cursor."""
    assert opening.cursor is not None
    cursor = Cursor.from_json(opening.cursor)
    if replica.step == opening.step - 1 and opening.record is not None:
        replica.apply(opening.record)
    elif replica.step != opening.step:
        replica.forget()
    if cursor.step == opening.step - 1 and opening.record is not None:
        cursor = advance(
            cursor, opening.record, replica.verdict(opening.record), len(replica.model.parameters)
        )
    replica.cursor = cursor
    replica.record = opening.record or replica.record
    replica.touched = True  # a joiner is about to get parameters that the seed does not give


def hand_over(replica: Replica, opening: Opening, group: Group, ownership: Ownership) -> None:
    """Move chunks to their new keepers, and everything else to the joiners; returns when all have it."""
    rank = group.rank
    # First the buffers: a joiner that holds a chunk counts as a survivor, should this generation break before
    # it is sealed, and a survivor has everything that nobody else keeps for it.
    _send_buffers(replica, opening, group)
    _move_chunks(replica, plan(opening, ownership), group)
    if len(opening.whole) < group.world:
        replica.whole = replica.whole and opening.workers[rank] in opening.whole
        Exchange(replica, group, ownership, opening.workers).gather()
    group.barrier()
    replica.states.relayout(ownership.held(rank))


def _move_chunks(replica: Replica, transfers: list[Transfer], group: Group) -> None:
    """One all-to-all for the parameters and one for each slot, all under way at once, from where the values
    lie to where they stay. What arrived is held only when all of it is here."""
    space, states = replica.model.space, replica.states
    sent, come = _by_peer(transfers, group)
    sizes = [sum(space.length(t.blocks) for t in peer) for peer in come]

    def start(row: Callable[[Range], Tensor]) -> Callable[[], list[Tensor]]:
        sends = [joined([row(t.blocks) for t in peer]) if peer else None for peer in sent]
        return group.start_exchange(sends, sizes, torch.float32)

    def of(slot: str) -> Callable[[Range], Tensor]:
        return lambda blocks: states.read(blocks)[slot]

    under_way = [start(lambda blocks: replica.model.params[space.elements(blocks)])]
    under_way += [start(of(slot)) for slot in replica.rule.slots]
    params, *slots = [arrival() for arrival in under_way]
    for source, peer in enumerate(come):
        at = 0
        for transfer in peer:
            here = slice(at, at + space.length(transfer.blocks))
            replica.model.params[space.elements(transfer.blocks)] = params[source][here]
            state = {s: slot[source][here] for s, slot in zip(replica.rule.slots, slots, strict=True)}
            states.put(transfer.blocks, state)
            at = here.stop


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


def _send_buffers(replica: Replica, opening: Opening, group: Group) -> None:
    """The first survivor sends its buffers to every joiner. Their bytes, whatever their types."""
    bank = replica.model.buffers
    survivors = [r for r, w in enumerate(opening.workers) if opening.held.get(w)]
    joiners = [r for r in range(group.world) if r not in survivors]
    if not bank or not joiners:
        return
    length = sum(b.numel() * b.element_size() for b in bank.base.values())
    sends: list[Tensor | None] = [None] * group.world
    if group.rank == survivors[0]:
        mine = torch.cat([_bytes(b) for b in bank.base.values()])
        sends = [mine if r in joiners else None for r in range(group.world)]
    sizes = [length if group.rank in joiners and r == survivors[0] else 0 for r in range(group.world)]
    arrived: Any = group.exchange(sends, sizes, torch.uint8)[survivors[0]]
    if group.rank in joiners:
        at = 0
        for base in bank.base.values():
            size = base.numel() * base.element_size()
            base.copy_(arrived[at : at + size].clone().view(base.dtype).view(base.shape))
            at += size
        bank.reset()


def _bytes(value: Tensor) -> Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)

"""What has to travel when a generation begins: who sends which blocks to whom. Pure, no torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from elastrain.trainers.membership.messages import Range
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership, intersect


@dataclass(frozen=True)
class Transfer:
    source: int
    target: int
    blocks: Range


def plan(opening: Opening, ownership: Ownership, rank: int | None = None) -> list[Transfer]:
    """Who sends which blocks to whom: for each block that a member is to keep and does not hold, the next
    holder after it in rank order. By target, bucket and owner. rank: only what this one sends or gets."""
    space = ownership.space
    before = Ownership.of(space, opening.before) if opening.same else None
    holdings = _Holdings(opening, before, space.per_bucket)
    mine = None if rank is None else _touched(rank, opening, ownership, before)
    found: list[tuple[tuple[int, int, int], list[Transfer]]] = []
    for bucket in space.buckets() if mine is None else mine:
        starts, holders = holdings.of(bucket)
        for chunk, owner in ownership.chunks(bucket):
            for target in {owner, ownership.buddy[owner]} - {None}:
                assert target is not None
                if lacking := _lacking(chunk, target, starts, holders):
                    found.append(((target, bucket[0], owner), lacking))
    transfers = [t for _, lacking in sorted(found, key=lambda f: f[0]) for t in lacking]
    return transfers if rank is None else [t for t in transfers if rank in (t.source, t.target)]


def _touched(rank: int, opening: Opening, ownership: Ownership, before: Ownership | None) -> list[Range]:
    """Buckets of which a rank holds something, or is to."""
    worker = opening.workers[rank]
    held = [*ownership.held(rank), *opening.held.get(worker, ())]
    if before is not None and worker in opening.same:
        held += before.held(opening.same[worker])
    space = ownership.space
    numbers = {n for a, z in held for n in range(a // space.per_bucket, (z - 1) // space.per_bucket + 1)}
    buckets = space.buckets()
    return [buckets[n] for n in sorted(numbers)]


class _Holdings:
    """Who holds what when the new generation begins, bucket by bucket."""

    def __init__(self, opening: Opening, before: Ownership | None, per_bucket: int) -> None:
        ranks = {w: rank for rank, w in enumerate(opening.workers)}
        self.before, self.per_bucket = before, per_bucket
        self.ranks = {old: ranks[w] for w, old in opening.same.items()}  # in `before` -> now
        self.said: dict[int, list[tuple[int, int, int]]] = {}  # bucket -> [(first block, stop, rank)]
        for worker, rank in ranks.items():
            for start, stop in opening.held.get(worker, ()):
                for number in range(start // per_bucket, (stop - 1) // per_bucket + 1):
                    self.said.setdefault(number, []).append((start, stop, rank))

    def of(self, bucket: Range) -> tuple[list[int], list[list[int]]]:
        """A bucket, cut wherever somebody's range begins or ends: (first block, ranks that hold it) of each
        piece, in order. Ranges may overlap after an interrupted handover."""
        changes: dict[int, list[tuple[int, int]]] = {bucket[0]: []}  # block -> [(rank, +1 or -1)]
        for start, stop, rank in self._ranges(bucket):
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

    def _ranges(self, bucket: Range) -> Iterator[tuple[int, int, int]]:
        for start, stop, rank in self.said.get(bucket[0] // self.per_bucket, ()):
            common = intersect((start, stop), bucket)
            if common is not None:
                yield *common, rank
        for (start, stop), owner in self.before.chunks(bucket) if self.before is not None else ():
            assert self.before is not None
            for old in (owner, self.before.buddy[owner]):
                if old in self.ranks:
                    yield start, stop, self.ranks[old]


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

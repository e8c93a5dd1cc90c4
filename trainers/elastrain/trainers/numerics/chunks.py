"""Who keeps what: the flat space of a model, cut into blocks, buckets and chunks. Pure, no torch.

All parameters lie in one flat space of elements, each beginning at a multiple of 64 elements (256 bytes of
fp32), the last-registered first, since backward finishes their gradients first. It is cut

- into *blocks* of fixed size, which depends on the model alone; norms and digests are taken per block,
- into *buckets*, runs of blocks that are exchanged together; they depend on the model alone as well,
- and every bucket into one *chunk* per rank, at block borders. The owner of a chunk, and its buddy in
  another failure domain, keep its optimizer state.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from elastrain.trainers.membership.messages import Range

# Elements. Kernels work in vector steps and treat a remainder with other (differently rounded) instructions:
# whole steps everywhere make an element's bits independent of where the chunk around it begins.
ALIGN = 64
LARGEST_BLOCK = 64 * 1024  # elements
SMALLEST_BLOCK = 64  # a multiple of ALIGN, as every block is
BLOCKS_AIMED_AT = 256  # a small model still spreads over many workers
BUCKET = 4 * 1024 * 1024  # elements; 16 MiB of fp32


@dataclass(frozen=True)
class Piece:
    """One parameter's place in the flat space."""

    name: str
    shape: tuple[int, ...]
    start: int  # element
    index: int  # in registration order

    @property
    def numel(self) -> int:
        count = 1
        for side in self.shape:
            count *= side
        return count

    @property
    def stop(self) -> int:
        return self.start + self.numel


@dataclass(frozen=True)
class FlatSpace:
    pieces: tuple[Piece, ...]  # in flat order
    size: int  # elements, a multiple of ALIGN
    block: int  # elements per block; the last one may be short

    @classmethod
    def of(cls, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> FlatSpace:
        """Lay out parameters given in registration order."""
        pieces: list[Piece] = []
        at = 0
        for index in reversed(range(len(shapes))):
            piece = Piece(*shapes[index], start=at, index=index)
            pieces.append(piece)
            at = -(-piece.stop // ALIGN) * ALIGN
        size = max(at, ALIGN)
        block = SMALLEST_BLOCK
        while block < LARGEST_BLOCK and block * BLOCKS_AIMED_AT < size:
            block *= 2
        return cls(tuple(pieces), size, block)

    @property
    def blocks(self) -> int:
        return -(-self.size // self.block)

    @property
    def per_bucket(self) -> int:
        """Blocks in every bucket but the last one, which may have fewer."""
        return max(1, BUCKET // self.block)

    def buckets(self) -> list[Range]:
        """Block ranges, in the order in which collectives are launched."""
        return [(b, min(b + self.per_bucket, self.blocks)) for b in range(0, self.blocks, self.per_bucket)]

    def elements(self, blocks: Range) -> slice:
        return slice(blocks[0] * self.block, min(blocks[1] * self.block, self.size))

    def inside(self, blocks: Range, elements: Sequence[slice]) -> list[slice]:
        """What of these elements of the space lies in a block range, from where that begins."""
        window = self.elements(blocks)
        cut = [(max(e.start, window.start), min(e.stop, window.stop)) for e in elements]
        return [slice(a - window.start, b - window.start) for a, b in cut if a < b]

    def length(self, blocks: Range) -> int:
        """Elements of a block range."""
        window = self.elements(blocks)
        return max(0, int(window.stop - window.start))

    def gaps(self) -> list[slice]:
        """Elements that belong to no parameter."""
        edges = [0, *(edge for p in self.pieces for edge in (p.start, p.stop)), self.size]
        return [slice(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]

    def pieces_in(self, blocks: Range) -> list[tuple[Piece, int, int]]:
        """Parameters that lie in a block range: (piece, first and last+1 element within the parameter)."""
        window = self.elements(blocks)
        found = []
        for piece in self.pieces:
            a, b = max(piece.start, window.start), min(piece.stop, window.stop)
            if a < b:
                found.append((piece, a - piece.start, b - piece.start))
        return found


class Filling:
    """Which buckets have all of their parameters, while these come in any order. For one pass."""

    def __init__(self, space: FlatSpace) -> None:
        self.buckets = space.buckets()  # asked for in every backward: listed once
        self._of: dict[int, range] = {}  # index of a parameter -> positions of the buckets it lies in
        for piece in space.pieces:
            first_block, last_block = piece.start // space.block, (piece.stop - 1) // space.block
            inside = [b for b, (a, z) in enumerate(self.buckets) if a <= last_block and first_block < z]
            # one without elements lies in none, and may begin where the space ends
            self._of[piece.index] = range(inside[0], inside[-1] + 1) if piece.numel else range(0)
        self._all = [0] * len(self.buckets)
        for positions in self._of.values():
            for b in positions:
                self._all[b] += 1
        self.restart()

    def restart(self) -> None:
        self._missing = self._all.copy()

    def take(self, index: int) -> list[int]:
        """A parameter is there: the positions of the buckets that are complete now."""
        for b in self._of[index]:
            self._missing[b] -= 1
        return [b for b in self._of[index] if self._missing[b] == 0]


@dataclass(frozen=True)
class Domain:
    """Where a member lives: what fails together with it."""

    worker: str
    group: str
    node: str
    keeps: bool = True  # state; beside servers, which do, workers keep none


def buddies(domains: Sequence[Domain]) -> list[int | None]:
    """For each rank the rank that keeps the same state: on another node and in another group if there is one,
    else on another node, else in another group, else another worker; and nobody for more than its share.

    All ranks stand in a ring, those of one node side by side. A shift by the size of the largest node leads
    out of every node, and makes each the buddy of one. Only where that node holds more than half of all does
    it not: then whoever keeps least so far takes the next.
    """
    if len(domains) < 2:
        return [None for _ in domains]
    nodes, groups = Counter(d.node for d in domains), Counter(d.group for d in domains)
    both = Counter((d.node, d.group) for d in domains)
    ring = sorted(range(len(domains)), key=lambda r: (domains[r].node, domains[r].group, r))
    shift = max(nodes.values()) if len(nodes) > 1 else max(groups.values()) if len(groups) > 1 else 1
    chosen: list[int | None] = [None] * len(domains)
    keeps, left = Counter[int](), list[tuple[int, int]]()  # (place in the ring, how far apart a buddy can be)

    def apart(a: int, b: int) -> int:
        return 2 * (domains[a].node != domains[b].node) + (domains[a].group != domains[b].group)

    for place, rank in enumerate(ring):
        mine, outside = domains[rank], len(domains) - nodes[domains[rank].node]
        away = outside - groups[mine.group] + both[mine.node, mine.group]
        best = 3 if away else 2 if outside else 1 if len(domains) > groups[mine.group] else 0
        buddy = ring[(place + shift) % len(ring)]
        if buddy != rank and apart(rank, buddy) == best:
            chosen[rank] = buddy
            keeps[buddy] += 1
        else:
            left.append((place, best))
    for place, best in left:
        rank = ring[place]
        turns = [ring[(place + turn) % len(ring)] for turn in range(1, len(ring))]
        buddy = min((r for r in turns if apart(rank, r) == best), key=lambda r: keeps[r])
        chosen[rank] = buddy
        keeps[buddy] += 1
    return chosen


@dataclass(frozen=True)
class Ownership:
    """One generation's chunks. Everything is a pure function of the flat space and the members."""

    space: FlatSpace
    domains: tuple[Domain, ...]
    buddy: tuple[int | None, ...]
    keepers: tuple[int, ...]  # ranks that keep state: all of them, or the servers

    @classmethod
    def of(cls, space: FlatSpace, domains: Sequence[Domain]) -> Ownership:
        keepers = tuple(rank for rank, d in enumerate(domains) if d.keeps)
        buddy: list[int | None] = [None] * len(domains)
        for rank, place in zip(keepers, buddies([domains[r] for r in keepers]), strict=True):
            buddy[rank] = None if place is None else keepers[place]
        return cls(space, tuple(domains), tuple(buddy), keepers)

    @property
    def world(self) -> int:
        return len(self.domains)

    @property
    def shared(self) -> bool:
        """Does every chunk live on every member? Then nothing needs to be forwarded or gathered."""
        return self.world <= 2 and len(self.keepers) == self.world

    def chunk(self, bucket: Range, rank: int) -> Range:
        """In the order of ranks, so that what goes to all of them is sent from where it lies. In each next
        bucket others get a larger chunk, or one at all. Who keeps no state has an empty one."""
        first, count, among = bucket[0], bucket[1] - bucket[0], len(self.keepers)
        if rank not in self._places:
            return (first, first)
        place, ahead = self._places[rank], self._ahead(bucket)
        return (first + (count * place + ahead) // among, first + (count * (place + 1) + ahead) // among)

    def chunks(self, bucket: Range) -> list[tuple[Range, int]]:
        """The chunks of a bucket that are not empty, in order, each with its owner."""
        first, count, among = bucket[0], bucket[1] - bucket[0], len(self.keepers)
        ahead = self._ahead(bucket)
        found: list[tuple[Range, int]] = []
        while not found or found[-1][0][1] < bucket[1]:
            block = found[-1][0][1] - first if found else 0
            place = ((block + 1) * among - ahead - 1) // count  # whose share of `count` begins at `block`
            end = first + (count * (place + 1) + ahead) // among
            found.append(((first + block, end), self.keepers[place]))
        return found

    def _ahead(self, bucket: Range) -> int:
        """What the shares of a bucket, in parts of a block, are ahead of those of the first one: as if those
        of all buckets were dealt in one go, so that nobody's differ from another's by more than a block."""
        return bucket[0] // self.space.per_bucket * (bucket[1] - bucket[0]) % len(self.keepers)

    def owned(self, rank: int) -> list[Range]:
        return [self.chunk(bucket, rank) for bucket in self.space.buckets()]

    @functools.cached_property
    def _places(self) -> dict[int, int]:
        return {rank: place for place, rank in enumerate(self.keepers)}

    @functools.cached_property
    def _kept(self) -> list[list[int]]:
        kept: list[list[int]] = [[] for _ in self.domains]
        for rank, buddy in enumerate(self.buddy):
            if buddy is not None:
                kept[buddy].append(rank)
        return kept

    def kept_for(self, rank: int) -> list[int]:
        """Ranks whose chunks `rank` keeps as their buddy."""
        return self._kept[rank]

    def held(self, rank: int) -> list[Range]:
        """Chunks whose state `rank` keeps, as owner or buddy; by bucket, then by owner; no empty ones."""
        if rank not in self._places:
            return []
        owners = sorted({rank, *self.kept_for(rank)})
        chunks = [self.chunk(bucket, owner) for bucket in self.space.buckets() for owner in owners]
        return [c for c in chunks if c[0] < c[1]]

    def reduces(self, bucket: Range, rank: int) -> Range:
        """The part of a bucket that `rank` sums up. Of two workers each sums everything: every chunk lives
        on both anyway."""
        return bucket if self.shared else self.chunk(bucket, rank)


def intersect(a: Range, b: Range) -> Range | None:
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else None


def subtract(a: Range, taken: Sequence[Range]) -> list[Range]:
    """What of `a` is in none of `taken`."""
    rest = [a]
    for t in taken:
        rest = [r for p in rest for r in ((p[0], min(p[1], t[0])), (max(p[0], t[1]), p[1])) if r[0] < r[1]]
    return rest

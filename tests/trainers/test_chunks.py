"""Who keeps what: for every model and every set of members."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import (
    ALIGN,
    BUCKET,
    Domain,
    Filling,
    FlatSpace,
    Ownership,
    buddies,
    intersect,
    subtract,
)

shapes = st.lists(st.lists(st.integers(1, 40), max_size=3).map(tuple), min_size=1, max_size=8)
spaces = shapes.map(lambda given_: FlatSpace.of([(f"p{i}", shape) for i, shape in enumerate(given_)]))
# several blocks per bucket and several buckets, without the sizes that go with it
wide = st.builds(
    lambda blocks, per: FlatSpace((), blocks * (BUCKET // per), BUCKET // per),
    st.integers(1, 40),
    st.integers(1, 6),
)


@st.composite
def members(draw: st.DrawFn, most: int = 9) -> list[Domain]:
    """Workers in groups of equal size, each group on one node."""
    per_group = draw(st.integers(1, 3))
    groups = draw(st.integers(1, most // per_group))
    nodes = [draw(st.integers(0, 3)) for _ in range(groups)]
    order = draw(st.permutations(range(groups * per_group)))
    return [Domain(f"w{i}", f"g{i // per_group}", f"n{nodes[i // per_group]}") for i in order]


def blocks(chunks: list[Range]) -> list[int]:
    return [b for first, last in chunks for b in range(first, last)]


@given(spaces)
def test_parameters_lie_apart_and_aligned_the_last_registered_first(space: FlatSpace) -> None:
    taken = 0
    for piece in space.pieces:
        assert piece.start % ALIGN == 0
        assert piece.start >= taken
        taken = piece.stop
    assert [p.index for p in space.pieces] == sorted((p.index for p in space.pieces), reverse=True)
    assert space.size >= taken
    assert space.block % ALIGN == 0


@given(st.one_of(spaces, wide))
def test_buckets_partition_the_blocks_and_blocks_the_elements(space: FlatSpace) -> None:
    buckets = space.buckets()
    assert blocks(buckets) == list(range(space.blocks))
    assert sum(space.length((b, b + 1)) for b in range(space.blocks)) == space.size
    assert all(space.length(bucket) <= max(BUCKET, space.block) for bucket in buckets)


@given(spaces, st.data())
def test_a_part_names_each_element_of_a_parameter_once(space: FlatSpace, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, space.blocks), max_size=4)) | {0, space.blocks})
    found: Counter[str] = Counter()
    for part in itertools.pairwise(cuts):
        for piece, first, last in space.pieces_in(part):
            assert 0 <= first < last <= piece.numel
            assert found[piece.name] == first, "in order, without a gap"
            found[piece.name] = last
    assert found == {p.name: p.numel for p in space.pieces}


@given(st.one_of(spaces, wide), members())
def test_chunks_partition_every_bucket(space: FlatSpace, domains: list[Domain]) -> None:
    own = Ownership.of(space, domains)
    for bucket in space.buckets():
        chunks = sorted(own.chunk(bucket, rank) for rank in range(own.world))
        assert blocks(chunks) == list(range(*bucket))
        listed = own.chunks(bucket)
        assert [c for c, _ in listed] == [c for c in chunks if c[0] < c[1]]
        assert all(own.chunk(bucket, rank) == c for c, rank in listed)
    everyone = sorted(b for rank in range(own.world) for b in blocks(own.owned(rank)))
    assert everyone == list(range(space.blocks)), "every block has exactly one owner"


@given(st.one_of(spaces, wide), members())
def test_chunks_of_one_bucket_lie_in_the_order_of_ranks(space: FlatSpace, domains: list[Domain]) -> None:
    """So what all owners get of it is sent from where it lies, without a copy."""
    own = Ownership.of(space, domains)
    for bucket in space.buckets():
        edges = [edge for rank in own.keepers for edge in own.chunk(bucket, rank)]
        assert edges == sorted(edges)


@given(wide, members())
def test_chunks_of_one_bucket_differ_by_one_block_at_most(space: FlatSpace, domains: list[Domain]) -> None:
    own = Ownership.of(space, domains)
    for bucket in space.buckets():
        sizes = [b - a for a, b in (own.chunk(bucket, rank) for rank in range(own.world))]
        assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 200), st.integers(1, 12), st.integers(2, 300))
def test_over_many_buckets_everybody_owns_about_the_same(buckets: int, per: int, workers: int) -> None:
    space = FlatSpace((), buckets * per * (BUCKET // per), BUCKET // per)
    own = Ownership.of(space, [Domain(f"w{i}", f"g{i}", f"n{i}") for i in range(workers)])
    loads = Counter(rank for bucket in space.buckets() for c, rank in own.chunks(bucket) for _ in range(*c))
    sizes = [loads[rank] for rank in range(workers)]
    assert max(sizes) - min(sizes) <= 2


@given(st.one_of(spaces, wide), members())
def test_every_block_is_held_by_owner_and_buddy(space: FlatSpace, domains: list[Domain]) -> None:
    own = Ownership.of(space, domains)
    holders = Counter(b for rank in range(own.world) for b in blocks(own.held(rank)))
    assert holders == dict.fromkeys(range(space.blocks), 2 if own.world > 1 else 1)
    for rank in range(own.world):
        assert len(set(blocks(own.held(rank)))) == len(blocks(own.held(rank))), "no block twice"
        buddy = own.buddy[rank]
        if buddy is not None:
            assert rank in own.kept_for(buddy)
            assert set(blocks(own.owned(rank))) <= set(blocks(own.held(buddy)))


@given(members())
def test_the_buddy_fails_with_nothing_that_takes_the_owner(domains: list[Domain]) -> None:
    chosen = buddies(domains)
    nodes, groups = {d.node for d in domains}, {d.group for d in domains}
    for mine, buddy in zip(domains, chosen, strict=True):
        if len(domains) == 1:
            assert buddy is None
            continue
        assert buddy is not None
        other = domains[buddy]
        assert other.worker != mine.worker
        if len(nodes) > 1:
            assert other.node != mine.node
        if len(groups) > 1:
            assert other.group != mine.group


@given(st.lists(st.integers(1, 8), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_nobody_keeps_more_for_others_than_it_must(sizes: list[int], dice: random.Random) -> None:
    """sizes: workers on each node, in any order of ranks."""
    domains = [Domain(f"{n}-{i}", f"{n}-{i}", f"n{n}") for n, size in enumerate(sizes) for i in range(size)]
    dice.shuffle(domains)
    chosen = buddies(domains)
    keeps = Counter(b for b in chosen if b is not None)
    largest = max(sizes)
    others = len(domains) - largest
    must = -(-largest // others) if others else 1
    assert max(keeps.values(), default=0) <= max(1, must)


def test_a_buddy_is_on_another_node_and_in_another_group_where_a_group_spans_nodes() -> None:
    spread = [
        Domain("a", "g0", "n0"),
        Domain("b", "g0", "n1"),
        Domain("c", "g1", "n1"),
        Domain("d", "g1", "n0"),
    ]
    assert buddies(spread) == [2, 3, 0, 1]
    assert buddies(spread[:2]) == [1, 0], "only the node can differ"
    assert buddies([spread[0], spread[3]]) == [1, 0], "only the group can differ"


@given(wide, members())
def test_of_two_members_each_sums_up_everything(space: FlatSpace, domains: list[Domain]) -> None:
    own = Ownership.of(space, domains)
    for bucket in space.buckets():
        for rank in range(own.world):
            expected = bucket if own.world <= 2 else own.chunk(bucket, rank)
            assert own.reduces(bucket, rank) == expected


some_range = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda r: (min(r), max(r)))


@given(some_range, st.lists(some_range, max_size=5))
def test_subtracting_ranges_is_subtracting_sets(whole: Range, taken: list[Range]) -> None:
    rest = subtract(whole, taken)
    assert blocks(rest) == sorted(set(range(*whole)) - set(blocks(taken)))
    assert all(a < b for a, b in rest) or whole[0] == whole[1]


@given(some_range, some_range)
def test_intersecting_ranges_is_intersecting_sets(a: Range, b: Range) -> None:
    common = intersect(a, b)
    assert set(range(*(common or (0, 0)))) == set(range(*a)) & set(range(*b))


def test_a_parameter_without_elements_is_in_no_bucket_wherever_it_is_registered() -> None:
    for shapes in ([("e", (0, 5)), ("w", (64,))], [("w", (64,)), ("e", (0,))], [("e", (3, 0))]):
        space = FlatSpace.of(shapes)
        filling = Filling(space)
        complete = [b for piece in space.pieces for b in filling.take(piece.index)]
        assert complete == ([0] if len(shapes) > 1 else [])


def test_the_buckets_of_a_parameter_are_those_whose_blocks_it_touches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastrain.trainers.numerics.chunks.BUCKET", 128)
    space = FlatSpace.of([("a", (64,)), ("b", (3 * 64,)), ("c", (64,))])
    filling = Filling(space)
    assert [space.elements(b) for b in space.buckets()] == [slice(0, 128), slice(128, 256), slice(256, 320)]
    assert [filling.take(i) for i in (1, 0, 2)] == [[1], [2], [0]]

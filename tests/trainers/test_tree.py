"""The canonical tree: whoever holds the leaves, the sum has the same bits."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.numerics.tree import (
    Climber,
    Node,
    climb,
    complete_units,
    cover,
    root,
    root_node,
    unit_size,
)

floats = st.floats(-1e30, 1e30)


@st.composite
def dealt(draw: st.DrawFn) -> tuple[list[float], list[int]]:
    """Values of a step, and who holds each."""
    values = draw(st.lists(floats, min_size=1, max_size=37))
    holders = draw(st.integers(1, 5))
    return values, draw(st.lists(st.integers(0, holders - 1), min_size=len(values), max_size=len(values)))


def leaves(values: list[float]) -> dict[Node, float]:
    return {Node(j, 1): value for j, value in enumerate(values)}


def by_hand(values: list[float]) -> float:
    """The tree written as a recursion over halves of the next power of two; absent halves are skipped."""
    half = 1 << (len(values) - 1).bit_length() >> 1
    return values[0] if len(values) == 1 else by_hand(values[:half]) + by_hand(values[half:])


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


@given(dealt())
def test_any_partition_into_holders_gives_the_same_bits(case: tuple[list[float], list[int]]) -> None:
    values, held_by = case
    parts: dict[Node, float] = {}
    for holder in set(held_by):
        own = {Node(j, 1): values[j] for j in range(len(values)) if held_by[j] == holder}
        parts |= climb(own, len(values))
    assert bits(root(parts, len(values))) == bits(by_hand(values))


@given(dealt(), st.randoms())
def test_the_order_of_arrival_does_not_matter(case: tuple[list[float], list[int]], random: object) -> None:
    values, _ = case
    order = list(range(len(values)))
    random.shuffle(order)  # type: ignore[attr-defined]
    climber: Climber[float] = Climber(len(values))
    for j in order:
        climber.add(j, values[j])
    assert bits(climber.parts[root_node(len(values))]) == bits(by_hand(values))


@given(dealt())
def test_a_holder_sends_exactly_its_cover(case: tuple[list[float], list[int]]) -> None:
    values, held_by = case
    count = len(values)
    for holder in set(held_by):
        held = [j for j in range(count) if held_by[j] == holder]
        nodes = cover(held, count)
        assert nodes == sorted(climb({Node(j, 1): values[j] for j in held}, count))
        assert sorted(j for node in nodes for j in node.leaves(count)) == held, "each leaf is in one node"
        for node in nodes:
            incomplete = node == root_node(count) or set(node.parent.leaves(count)) - set(held)
            assert incomplete, f"{node} could go higher"


@given(st.integers(1, 200), st.integers(0, 199), st.integers(1, 200))
def test_a_contiguous_run_needs_few_values_at_a_time(count: int, first: int, length: int) -> None:
    run = range(min(first, count - 1), min(first + length, count))
    climber: Climber[int] = Climber(count)
    most = 0
    for j in run:
        climber.add(j, j)
        most = max(most, len(climber.parts))
    assert most <= 2 * (1 + math.log2(len(run)))
    if run.start == 0:
        assert most <= 1 + math.log2(len(run))


def test_an_absent_leaf_is_not_a_zero() -> None:
    assert bits(root({Node(0, 1): -0.0}, 1)) == bits(-0.0)
    assert bits(root(leaves([-0.0, -0.0, -0.0]), 3)) == bits(-0.0)


def test_a_redo_takes_finished_sums_as_they_are() -> None:
    values = [0.1, 0.2, 0.3, 1e8, -1e8, 0.7, 0.9]
    finished = climb({Node(j, 1): values[j] for j in (0, 1, 4)}, 7)
    redone = climb({Node(j, 1): values[j] for j in (2, 3, 5, 6)}, 7)
    assert bits(root(finished | redone, 7)) == bits(by_hand(values))


def test_in_place_sums_reuse_the_left_array() -> None:
    arrays = [np.full(3, float(j)) for j in range(4)]
    total = root({Node(j, 1): array for j, array in enumerate(arrays)}, 4, inplace=True)
    assert total is arrays[0]
    assert total.tolist() == [6.0, 6.0, 6.0]
    assert arrays[1].tolist() == [1.0, 1.0, 1.0], "what was added stays as it is"


def test_without_inplace_the_values_stay() -> None:
    arrays = [np.full(3, float(j)) for j in range(4)]
    climb({Node(j, 1): array for j, array in enumerate(arrays)}, 4)
    assert [array[0] for array in arrays] == [0.0, 1.0, 2.0, 3.0]


def test_a_lost_microbatch_is_named() -> None:
    with pytest.raises(ValueError, match=r"over 4 microbatches lacks those numbered \[1, 3\]"):
        root({Node(0, 1): 1.0, Node(2, 1): 1.0}, 4)


def test_a_microbatch_summed_twice_is_refused() -> None:
    climber: Climber[float] = Climber(4)
    climber.add(0, 1.0)
    climber.add(1, 1.0)
    with pytest.raises(ValueError, match="already summed"):
        climber.add(1, 1.0)
    with pytest.raises(ValueError, match="already summed"):
        climb({Node(0, 2): 1.0, Node(0, 1): 1.0}, 4)


@pytest.mark.parametrize(
    "node", [Node(4, 1), Node(-1, 1), Node(1, 2), Node(0, 3), Node(0, 0), Node(0, 8), Node(-8, 8)]
)
def test_a_subtree_that_the_step_does_not_have_is_refused(node: Node) -> None:
    with pytest.raises(ValueError, match="not a subtree"):
        Climber[float](4).put(node, 1.0)


def test_a_step_without_microbatches_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one microbatch"):
        cover([], 0)


@given(st.integers(1, 200), st.integers(1, 20))
def test_units_are_as_large_as_can_be_with_one_for_each_part(count: int, parts: int) -> None:
    unit = unit_size(count, parts)
    assert unit & (unit - 1) == 0
    assert -(-count // unit) >= min(parts, count)
    assert 2 * unit > root_node(count).size or -(-count // (2 * unit)) < parts


@given(dealt(), st.sampled_from([1, 2, 4, 8]))
def test_sums_that_stop_at_a_ceiling_give_the_same_bits_in_the_end(
    case: tuple[list[float], list[int]], ceiling: int
) -> None:
    values, held_by = case
    count = len(values)
    parts: dict[Node, float] = {}
    for holder in set(held_by):
        held = [j for j in range(count) if held_by[j] == holder]
        climber: Climber[float] = Climber(count, ceiling=ceiling)
        for j in held:
            climber.add(j, values[j])
        assert cover(held, count, ceiling) == sorted(climber.parts)
        assert all(node.size <= ceiling for node in climber.parts)
        parts |= climber.parts
    assert bits(root(parts, count)) == bits(by_hand(values))


def test_only_units_that_are_held_whole_are_complete() -> None:
    assert complete_units([0, 1, 2, 5, 6], 7, 2) == [0, 1, 6], "the last one is short"
    assert complete_units([0, 2, 3], 4, 1) == [0, 2, 3]
    assert complete_units([0, 1, 2], 3, 4) == [0, 1, 2]
    assert complete_units([0, 1], 3, 4) == []

"""Only what changes hands travels: for any two sets of members, and after an interrupted handover."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.chunks import BUCKET, Domain, FlatSpace, Ownership
from elastrain.trainers.handover import Opening, Transfer, plan
from elastrain.trainers.messages import Range


def ownership(blocks: int, workers: list[str]) -> Ownership:
    return Ownership.of(
        FlatSpace((), blocks * (BUCKET // 4), BUCKET // 4), [Domain(w, w, w) for w in workers]
    )


def opening(workers: list[str], held: dict[str, list[Range]]) -> Opening:
    members = tuple({"worker": w, "group": w, "node": w} for w in workers)
    return Opening(2, members, 5, {}, None, held, (), {}, None, 0)


def blocks(ranges: list[Range]) -> set[int]:
    return {b for a, z in ranges for b in range(a, z)}


@st.composite
def changes(draw: st.DrawFn) -> tuple[int, list[str], dict[str, list[Range]]]:
    """(blocks, members of the new generation, what they hold). Whoever left took nothing that was unique."""
    size = draw(st.integers(1, 30))
    before = [f"w{i}" for i in range(draw(st.integers(1, 6)))]
    own = ownership(size, before)
    held = {w: own.held(rank) for rank, w in enumerate(before)}
    for worker in before:  # a handover that was interrupted left some with more than they keep
        if draw(st.booleans()):
            first = draw(st.integers(0, size - 1))
            held[worker] = [*held[worker], (first, draw(st.integers(first + 1, size)))]
    gone = draw(st.sampled_from([None, *before]))
    stay = [w for w in before if w != gone]
    if len(set().union(*(blocks(held[w]) for w in stay), set())) < size:
        stay = before
    workers = [*stay, *(f"j{i}" for i in range(draw(st.integers(0, 3))))]
    return size, workers, {w: held[w] for w in stay}


@given(changes())
def test_everybody_gets_what_it_is_to_keep_from_somebody_who_holds_it(
    change: tuple[int, list[str], dict[str, list[Range]]],
) -> None:
    size, workers, held = change
    own = ownership(size, workers)
    has = [blocks(held.get(w, [])) for w in workers]
    got: list[set[int]] = [set() for _ in workers]
    for transfer in plan(opening(workers, held), own):
        moved = set(range(*transfer.blocks))
        assert moved
        assert moved <= has[transfer.source], "it sends what it holds"
        assert not moved & has[transfer.target], "what is there does not travel"
        assert not moved & got[transfer.target], "nothing travels twice"
        got[transfer.target] |= moved
    for rank in range(own.world):
        keeps = blocks(own.held(rank))
        assert keeps <= has[rank] | got[rank]
        assert got[rank] <= keeps


@given(changes())
def test_the_next_holder_in_rank_order_sends(change: tuple[int, list[str], dict[str, list[Range]]]) -> None:
    size, workers, held = change
    has = [blocks(held.get(w, [])) for w in workers]
    world = len(workers)
    for transfer in plan(opening(workers, held), ownership(size, workers)):
        for block in range(*transfer.blocks):
            turns = (rank % world for rank in range(transfer.target + 1, transfer.target + world))
            assert transfer.source == next(rank for rank in turns if block in has[rank])


def test_nothing_travels_if_nobody_came_or_went() -> None:
    own = ownership(12, ["a", "b", "c"])
    held = {w: own.held(rank) for rank, w in enumerate(["a", "b", "c"])}
    assert plan(opening(["a", "b", "c"], held), own) == []


def test_neighbouring_pieces_of_one_holder_travel_as_one() -> None:
    own = ownership(4, ["a", "b"])
    moves = plan(opening(["a", "b"], {"a": [(0, 1), (1, 3), (3, 4)]}), own)
    assert moves == [Transfer(0, 1, (0, 2)), Transfer(0, 1, (2, 4))], "by chunk"


def test_a_block_that_nobody_holds_is_named() -> None:
    own = ownership(4, ["a", "b"])
    with pytest.raises(AssertionError, match=r"blocks \(3, 4\) are held by nobody"):
        plan(opening(["a", "b"], {"a": [(0, 3)]}), own)

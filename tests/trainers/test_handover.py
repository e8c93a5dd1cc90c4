"""Only what changes hands travels: for any two sets of members, and after an interrupted handover."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.exchange.transfers import Transfer, plan
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.membership.opening import Opening, thin
from elastrain.trainers.membership.wire import decode, encode
from elastrain.trainers.numerics.chunks import BUCKET, Domain, FlatSpace, Ownership


def ownership(blocks: int, workers: list[str]) -> Ownership:
    return Ownership.of(
        FlatSpace((), blocks * (BUCKET // 4), BUCKET // 4), [Domain(w, w, w) for w in workers]
    )


def described(workers: list[str]) -> list[m.Json]:
    return [{"worker": w, "group": w, "node": w} for w in workers]


def opening(workers: list[str], held: dict[str, list[Range]]) -> Opening:
    return Opening(2, tuple(described(workers)), 5, {}, None, held, (), {}, None, 0)


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


@st.composite
def in_few_words(draw: st.DrawFn) -> tuple[int, list[str], m.Open, list[str]]:
    """(blocks, members of generation 2, the machine's opening of it, members of generation 1). Some hold just
    what generation 1 gave them, some hold more, some hold nothing of use, some are gone."""
    size = draw(st.integers(1, 30))
    before = [f"w{i}" for i in range(draw(st.integers(1, 7)))]
    own = ownership(size, before)
    held = {w: tuple(own.held(rank)) for rank, w in enumerate(before)}
    fates = {w: draw(st.sampled_from(["same", "same", "more", "nothing", "gone"])) for w in before}
    if len(set().union(*(blocks([*held[w]]) for w in before if fates[w] in ("same", "more")))) < size:
        fates = {**fates, before[0]: "everything"}
    reported = {w: h for w, h in held.items() if fates[w] in ("same", "more", "everything")}
    for worker in reported:
        if fates[worker] == "more":
            first = draw(st.integers(0, size - 1))
            reported[worker] = (*reported[worker], (first, draw(st.integers(first + 1, size))))
        elif fates[worker] == "everything":
            reported[worker] = ((0, size),)
    stay = [w for w in before if fates[w] != "gone"]
    members = draw(st.permutations([*stay, *(f"j{i}" for i in range(draw(st.integers(0, 2))))]))
    same = tuple(w for w in reported if fates[w] == "same")
    action = m.Open(2, tuple(members), 5, held=reported, same=(1 if same else 0, same))
    return size, list(members), action, before


@given(in_few_words())
def test_an_opening_in_few_words_says_the_same_as_one_that_names_every_range(
    story: tuple[int, list[str], m.Open, list[str]],
) -> None:
    size, workers, action, before = story
    own, full = ownership(size, workers), {w: list(h) for w, h in action.held.items()}
    named = opening(workers, full)
    said = thin(described(workers), action, described(before) if action.same[0] else [])
    others = {"generation": 2, "step": 5, "cursor": {}, "record": None, "whole": [], "done": {}}
    few = Opening.from_json(decode(encode({**others, "restore": None, "saved_step": 0, **said})))
    assert plan(few, own) == plan(named, own)
    empty = {r for r, w in enumerate(workers) if w in action.same[1] and not action.held[w]}
    assert set(few.survivors()) - set(named.survivors()) == empty, "a layout may give nothing to a survivor"
    assert set(named.survivors()) <= set(few.survivors())
    for rank in range(own.world):
        mine = [t for t in plan(named, own) if rank in (t.source, t.target)]
        assert plan(few, own, rank) == plan(named, own, rank) == mine
    assert not set(action.same[1]) & few.held.keys(), "what its layout says is not said again"


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

"""Every invariant of the simulation (ledger.py) can fail: the machine or a worker is broken on purpose, and
the stories find it out, by the name of what does not hold any more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from elastrain.trainers.membership import agreement, progress
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.balance import Balance
from elastrain.trainers.membership.blame import Blame
from elastrain.trainers.membership.fleet import Fleet
from elastrain.trainers.membership.generation import Generation
from elastrain.trainers.membership.machine import Machine
from elastrain.trainers.membership.progress import Progress
from elastrain.trainers.membership.roster import Worker
from elastrain.trainers.membership.stall import Stall
from elastrain.trainers.numerics import chunks
from trainers import ledger, simulated_world
from trainers.simulated_copy import Copy, blocks_in
from trainers.simulated_faults import WEIGHED
from trainers.simulated_worker import SimulatedWorker
from trainers.simulation import run

pytestmark = pytest.mark.sabotage

STORIES = 2000
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def no_layout_outlives_its_test() -> Iterator[None]:
    simulated_world.ownership.cache_clear()
    yield
    simulated_world.ownership.cache_clear()


# ---- the machine -------------------------------------------------------------------------------


def hears_older_generations(patch: Patch) -> None:
    def heard(self: Machine, worker: Worker, event: Any) -> None:
        if isinstance(event, m.Committed | m.Sealed | m.Idle | m.Waits):
            self._heard_in_generation(worker, event)
        else:
            original(self, worker, event)

    original = Machine._heard
    patch.setattr(Machine, "_heard", heard)


def hears_the_removed(patch: Patch) -> None:
    patch.setattr(Worker, "counts", property(lambda self: True))


def forgets_records(patch: Patch) -> None:
    original = Progress.accept

    def accept(self: Progress, *given: Any) -> m.Accept | None:
        accepted = original(self, *given)
        self.record = None
        return accepted

    patch.setattr(Progress, "accept", accept)


def keeps_the_record_to_itself(patch: Patch) -> None:
    resume = agreement.resume_point
    patch.setattr(progress, "resume_point", lambda *given: replace(resume(*given), record=None))


def begins_where_the_slowest_is(patch: Patch) -> None:
    original = Progress.opening

    def opening(self: Progress, members: Any) -> m.Open:
        opened = original(self, members)
        steps = [w.report.step for w in members if w.report is not None and w.report.cursor is not None]
        return replace(opened, step=min([opened.step, *steps])) if not opened.restore else opened

    patch.setattr(Progress, "opening", opening)


def accepts_whatever_it_hears(patch: Patch) -> None:
    def accept(self: Progress, step: int, record: m.Json, cursor: m.Json | None = None) -> m.Accept:
        self.step, self.record, self.begun = step, (step, record), True
        return m.Accept(step, record, cursor)

    patch.setattr(Progress, "accept", accept)


def does_not_wait_for_reports(patch: Patch) -> None:
    patch.setattr(Generation, "collect", lambda self: self.awaited.clear())


def never_sees_that_all_is_held(patch: Patch) -> None:
    patch.setattr(Progress, "covered", lambda self, held: False)


def takes_any_part_for_the_whole(patch: Patch) -> None:
    """It opens without a restore though nobody holds some of the blocks."""
    patch.setattr(Progress, "covered", lambda self, held: bool(held))


def goes_on_with_one_of_two_copies(patch: Patch) -> None:
    patch.setattr(Progress, "distrusted", property(lambda self: False, lambda self, value: None))


def lets_everybody_go_at_once(patch: Patch) -> None:
    patch.setattr(Progress, "free_to_leave", lambda self, groups, *given: groups)


def removes_all_who_are_silent(patch: Patch) -> None:
    patch.setattr(Fleet, "at_most_half", lambda self, workers: list({w.group: w for w in workers}.values()))


def never_removes_the_silent(patch: Patch) -> None:
    patch.setattr("elastrain.trainers.membership.fleet.silent", lambda *_: [])


def never_removes_the_stuck(patch: Patch) -> None:
    patch.setattr(Stall, "_look_for_stuck", lambda *given: None)


def never_looks_for_a_cut(patch: Patch) -> None:
    patch.setattr(Stall, "_look_for_hang", lambda *given: None)


def halts_nobody(patch: Patch) -> None:
    patch.setattr(Generation, "halt", lambda self, why: [])


def tells_of_a_pause_once(patch: Patch) -> None:
    original = Machine._formed

    def formed(self: Machine) -> None:
        original(self)
        self._out[:] = [a for a in self._out if not isinstance(a, m.Command)]

    patch.setattr(Machine, "_formed", formed)


def replaces_nobody(patch: Patch) -> None:
    original = Fleet._balance
    patch.setattr(Fleet, "_balance", lambda self: None if self.progress.begun else original(self))


def blames_the_user_at_once(patch: Patch) -> None:
    patch.setattr(Blame, "raised", lambda self, worker, fault, alone: True)


def ends_before_all_is_saved(patch: Patch) -> None:
    patch.setattr(Progress, "all_saved", property(lambda self: True))


# ---- the workers -------------------------------------------------------------------------------


def takes_the_next_rank_for_buddy(patch: Patch) -> None:
    def buddies(domains: Any) -> list[int | None]:
        return [(r + 1) % len(domains) if len(domains) > 1 else None for r in range(len(domains))]

    patch.setattr(chunks, "buddies", buddies)


def has_no_buddy(patch: Patch) -> None:
    patch.setattr(chunks.Ownership, "kept_for", lambda self, rank: [])


def deals_a_microbatch_twice(patch: Patch) -> None:
    original = Balance.deal

    def deal(self: Balance, count: int, done: Any = None) -> list[list[int]]:
        dealt = original(self, count, done)
        return [[*share, 0] if rank == len(dealt) - 1 > 0 else share for rank, share in enumerate(dealt)]

    patch.setattr(Balance, "deal", deal)


def forgets_what_was_computed(patch: Patch) -> None:
    original = Balance.deal
    patch.setattr(Balance, "deal", lambda self, count, done=None: original(self, count))


def lets_a_joiner_begin_its_own_chain(patch: Patch) -> None:
    original = Copy.catch_up

    def catch_up(self: Copy, opening: Any) -> None:
        joins = self.cursor is None
        original(self, opening)
        if joins and self.cursor is not None:
            self.cursor["chain"] = 0

    patch.setattr(Copy, "catch_up", catch_up)


def moves_too_little(patch: Patch) -> None:
    original = simulated_world.plan
    patch.setattr(simulated_world, "plan", lambda *given: original(*given)[:-1])


def takes_a_joiner_with_a_chunk_for_complete(patch: Patch) -> None:
    """What was wrong once: the buffers came last, so that a handover that broke left some without."""
    original = Copy.catch_up

    def catch_up(self: Copy, opening: Any) -> None:
        joins = self.cursor is None
        original(self, opening)
        if joins:
            self.buffers = -1
            self.state.update({0: opening.step})

    patch.setattr(Copy, "catch_up", catch_up)


def does_not_gather(patch: Patch) -> None:
    def gather(self: SimulatedWorker, *given: Any) -> Iterator[Any]:
        self.copy.whole = True
        yield

    patch.setattr(SimulatedWorker, "gather", gather)


def commits_without_all_sums(patch: Patch) -> None:
    original = SimulatedWorker.reduce

    def reduce(self: SimulatedWorker, meeting: Any, rank: int, at: int, holders: list[int]) -> Any:
        yield from original(self, meeting, rank, at, holders)
        mine = blocks_in(meeting.ownership.owned(rank))
        self.copy.reduced = {b: s for b, s in self.copy.reduced.items() if b in mine}

    patch.setattr(SimulatedWorker, "reduce", reduce)


def commits_before_its_chunks_have_come(patch: Patch) -> None:
    def seal(self: SimulatedWorker, g: Any, wait: bool = True) -> Any:
        yield from original(self, g, wait=False)

    original = SimulatedWorker.seal
    patch.setattr(SimulatedWorker, "seal", seal)


# (what is said, which is an invariant's name in nearly all cases; who makes it so)
FOUND_OUT: list[tuple[str, Callable[[Patch], None]]] = [
    ("one generation", hears_older_generations),
    ("nothing lost", begins_where_the_slowest_is),
    ("agreed", goes_on_with_one_of_two_copies),
    ("redone", lets_everybody_go_at_once),
    ("redone", accepts_whatever_it_hears),
    ("redone", never_sees_that_all_is_held),
    ("redone", forgets_records),
    ("samples", deals_a_microbatch_twice),
    ("samples", forgets_what_was_computed),
    ("samples", lets_a_joiner_begin_its_own_chain),
    ("same bits", keeps_the_record_to_itself),
    ("two domains", moves_too_little),
    ("same bits", takes_a_joiner_with_a_chunk_for_complete),
    ("same bits", does_not_gather),
    ("same bits", commits_without_all_sums),
    ("same bits", commits_before_its_chunks_have_come),
    ("held by nobody", takes_any_part_for_the_whole),
    ("the end", does_not_wait_for_reports),
    ("two domains", takes_the_next_rank_for_buddy),
    ("two domains", has_no_buddy),
    ("fenced", hears_the_removed),
    ("patience", removes_all_who_are_silent),
    ("blame", blames_the_user_at_once),
    ("the end", ends_before_all_is_saved),
    ("the end", never_removes_the_silent),
    ("the end", never_removes_the_stuck),
    ("the end", never_looks_for_a_cut),
    ("the end", halts_nobody),
    ("the end", tells_of_a_pause_once),
    ("the end", replaces_nobody),
]


# What is only seen when a few things come together is looked for in stories of just these.
STAGED: dict[Callable[[Patch], None], list[str]] = {
    hears_older_generations: ["say_again", "say_again", "kill_owner_and_buddy", "kill_node"],
    goes_on_with_one_of_two_copies: ["rot", "rot", "kill", "freeze_until_removed"],
    keeps_the_record_to_itself: [
        "kill_the_only_witness",
        "kill",
        "freeze_until_removed",
        "cut_in_the_commit",
    ],
}


def test_every_invariant_is_hurt_by_somebody() -> None:
    names = re.findall(r"^([a-z ]+):  ?", ledger.__doc__ or "", re.MULTILINE)
    assert len(names) == 11
    assert set(names) - {said for said, _ in FOUND_OUT} == set()


@pytest.mark.parametrize(("said", "sabotage"), FOUND_OUT, ids=[s.__name__ for _, s in FOUND_OUT])
def test_what_is_wrong_is_found_out(said: str, sabotage: Callable[[Patch], None], monkeypatch: Patch) -> None:
    sabotage(monkeypatch)
    others: set[str] = set()
    for seed in range(STORIES):
        try:
            run(seed, kinds=STAGED.get(sabotage, WEIGHED))
        except (AssertionError, KeyError) as error:
            if isinstance(error, AssertionError) and said in str(error):
                return
            others.add(repr(error)[:100])
    raise AssertionError(f"{STORIES} stories do not show {said!r}, but {others}")

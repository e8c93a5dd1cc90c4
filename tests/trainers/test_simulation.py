"""Random schedules around the real machine: kills, freezes, partitions, joins, leaves, bad checkpoints.

The invariants are in ledger.py. Each of them can fail: the second half breaks the machine on purpose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, seed, settings

from elastrain.trainers import agreement, progress
from elastrain.trainers import messages as m
from elastrain.trainers.fleet import Fleet
from elastrain.trainers.generation import Generation
from elastrain.trainers.membership import Machine
from elastrain.trainers.progress import Progress
from elastrain.trainers.roster import Worker
from trainers import simulated_world
from trainers.big import measure
from trainers.simulated_faults import WEIGHED, too_rare
from trainers.simulation import run
from trainers.story import Story, stories

STORIES = 2000


class Told:
    """A story as hypothesis prints it once it has found the shortest that fails: the deeds, then word by word
    what happened."""

    def __init__(self, story: Story) -> None:
        self.story = story

    def __repr__(self) -> str:
        try:
            run(self.story, tell=True)
        except Exception as error:
            return "\n".join([f'python -m trainers.simulation --story "{self.story}"', *error.__notes__])
        return "it does not fail again"


def test_nothing_is_lost_and_nobody_waits_forever_whatever_happens() -> None:
    counts: Counter[str] = Counter()

    @seed(1)
    @settings(max_examples=STORIES, database=None, suppress_health_check=list(HealthCheck))
    @given(stories(WEIGHED))
    def tell(story: Story) -> None:
        try:
            counts.update(run(story).ledger.counts)
        except Exception:
            note(Told(story))
            raise

    tell()
    print(*(f"{times:7} {name}" for name, times in counts.most_common()), sep="\n")
    assert not too_rare(counts, STORIES), "else the schedules prove little"
    assert counts["succeeded"] + counts["paused"] > 0.6 * STORIES
    assert counts["generations"] > 2 * STORIES
    assert counts["failed by service"] == 0


# ---- the machine is broken, and it shows --------------------------------------------------------


def forgets_records(patch: pytest.MonkeyPatch) -> None:
    original = Progress.accept

    def accept(self: Progress, *given: Any) -> m.Accept | None:
        accepted = original(self, *given)
        self.record = None
        return accepted

    patch.setattr(Progress, "accept", accept)


def does_not_wait_for_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Generation, "collect", lambda self: self.awaited.clear())


def takes_any_part_for_the_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "covered", lambda self, held: bool(held))


def never_sees_that_all_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "covered", lambda self, held: False)


def hears_the_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "counts", property(lambda self: True))


def never_removes_the_silent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fleet, "_silent", lambda self, awaited: [])


def halts_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Generation, "halt", lambda self, why: [])


def lets_everybody_go_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "free_to_leave", lambda self, groups, survivors, room: groups)


def keeps_the_record_to_itself(patch: pytest.MonkeyPatch) -> None:
    resume = agreement.resume_point
    patch.setattr(progress, "resume_point", lambda *given: replace(resume(*given), record=None))


def tells_of_a_pause_once(patch: pytest.MonkeyPatch) -> None:
    original = Machine._formed

    def formed(self: Machine) -> None:
        original(self)
        self._out[:] = [a for a in self._out if not isinstance(a, m.Command)]

    patch.setattr(Machine, "_formed", formed)


def replaces_nobody(patch: pytest.MonkeyPatch) -> None:
    original = Fleet._balance
    patch.setattr(Fleet, "_balance", lambda self: None if self.progress.begun else original(self))


def moves_too_little(patch: pytest.MonkeyPatch) -> None:
    original = simulated_world.plan
    patch.setattr(simulated_world, "plan", lambda *given: original(*given)[:-1])


@pytest.mark.parametrize(
    "sabotage",
    [
        forgets_records,
        does_not_wait_for_reports,
        takes_any_part_for_the_whole,
        never_sees_that_all_is_held,
        hears_the_removed,
        never_removes_the_silent,
        halts_nobody,
        lets_everybody_go_at_once,
        keeps_the_record_to_itself,
        tells_of_a_pause_once,
        replaces_nobody,
        moves_too_little,
    ],
)
def test_a_machine_that_is_wrong_is_found_out(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(300):
            run(seed)


# ---- a thousand workers ------------------------------------------------------------------------


def test_a_change_among_many_workers_costs_a_few_words_for_each() -> None:
    costs = measure(100)
    assert costs["a join"].orders == {"command": 100, "open": 101}
    assert costs["a leave"].orders == {"command": 101, "open": 100, "dismiss": 1}
    assert costs["a death"].orders == {"halt": 99, "open": 99}

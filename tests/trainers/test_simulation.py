"""Random schedules around the real machine: kills, freezes, partitions, joins, leaves, bad checkpoints.

The invariants are in ledger.py. Each of them can fail: test_sabotage.py breaks the machine on purpose.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, note, seed, settings

from trainers.big import measure
from trainers.simulated_faults import WEIGHED, too_rare
from trainers.simulation import run
from trainers.story import Story, draw, stories

STORIES = 2000
SERVED = 120
PHASES = (Phase.generate, Phase.shrink)  # no explanation: it makes a story that fails ten times as slow


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


@pytest.mark.timeout(900)  # to shrink a story takes minutes
def test_nothing_is_lost_and_nobody_waits_forever_whatever_happens() -> None:
    counts: Counter[str] = Counter()

    @seed(1)
    @settings(max_examples=STORIES, database=None, suppress_health_check=list(HealthCheck), phases=PHASES)
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


def test_a_job_that_all_leave_at_once_goes_on_from_what_they_saved() -> None:
    """In stories in which nothing else happens: in the others it is too rare to count on."""
    counts: Counter[str] = Counter()
    for number in range(100):
        counts.update(run(number, kinds=["notice_to_all"]).ledger.counts)
    assert counts["all leave, and it is saved"] > 10


@pytest.mark.timeout(900)
def test_servers_keep_everything_whatever_happens_to_workers_and_to_them() -> None:
    """The same stories, told of servers that keep the state, and of workers that keep none."""
    counts: Counter[str] = Counter()
    for number in range(SERVED):
        story = draw(random.Random(number), WEIGHED)
        setup = replace(story.setup, servers=1 + number % 3)
        try:
            counts.update(run(replace(story, setup=setup)).ledger.counts)
        except Exception as error:
            error.add_note(f'python -m trainers.simulation --story "{replace(story, setup=setup)}"')
            raise
    assert counts["generations"] > 2 * SERVED
    assert counts["failed by service"] == 0


# ---- a thousand workers ------------------------------------------------------------------------


def test_a_change_among_many_workers_costs_a_few_words_for_each() -> None:
    costs = measure(100)
    assert costs["a join"].orders == {"command": 100, "open": 101}
    assert costs["a leave"].orders == {"command": 101, "open": 100, "dismiss": 1}
    assert costs["a death"].orders == {"halt": 99, "open": 99}

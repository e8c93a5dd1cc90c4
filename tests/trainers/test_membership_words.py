"""Words that are late, doubled, out of order, or from somebody who was removed change nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.messages import Fault, Report
from trainers.stage import Stage, cursor, record, training

POISON = Fault("compute", "ValueError: bad", "", 3, 0, at_once=True)


def state(stage: Stage) -> dict[str, Any]:
    """All that the machine knows, but for when it heard of whom last."""
    machine = stage.machine
    workers = [{**vars(w), "last_beat": 0} for w in machine.roster.workers.values()]
    generation = {k: v for k, v in vars(machine.generation).items() if k != "members"}
    return {
        "workers": workers,
        "groups": [asdict(g) for g in machine.roster.groups.values()],
        "slots": [asdict(s) for s in machine.roster.slots.values()],
        "generation": {**generation, "awaited": set(machine.generation.awaited), "members": machine.members},
        "progress": asdict(machine.progress),
        "blame": asdict(machine.fleet.blame),
        "rest": (machine.phase, machine.log_number, machine.finishing, machine.cause, machine.below_since),
    }


def words(worker: str, generation: int) -> list[m.Event]:
    """Everything that a member could say in a generation."""
    held = ((0, 12),)
    return [
        m.Waits(worker, generation),
        m.Sealed(worker, generation, 3),
        m.Committed(worker, generation, 9, record(9)),
        m.Idle(worker, generation, 3),
        m.Reported(worker, Report(generation, "halted", 8, cursor(8), record(8), held, True)),
        m.Reported(worker, Report(generation, "broken", 3, cursor(3), None, held, True)),
        m.Reported(worker, Report(generation, "fault", 3, cursor(3), None, held, True, fault=POISON)),
    ]


def changes_nothing(stage: Stage, event: m.Event) -> None:
    before = state(stage)
    stage.news(m.Open)
    stage.feed(event)
    assert stage.out == [], event
    assert state(stage) == before, event


def phases() -> list[Stage]:
    """Generation 2 in each of its phases: w0 and w1 go on without w2."""
    stages = [training(3).die("w2").report() for _ in range(3)]
    stages[1].seal()
    stages[2].seal().report("w1")
    return stages


@pytest.mark.parametrize("phase", range(3))
def test_words_of_an_older_generation_change_nothing(phase: int) -> None:
    for event in words("w0", generation=1):
        changes_nothing(phases()[phase], event)


@pytest.mark.parametrize("phase", range(3))
def test_words_of_a_generation_that_never_was_change_nothing(phase: int) -> None:
    for event in words("w0", generation=7):
        changes_nothing(phases()[phase], event)


@pytest.mark.parametrize("phase", range(3))
def test_words_of_a_removed_worker_change_nothing_though_its_connection_is_open(phase: int) -> None:
    stage = phases()[phase]
    stage.machine.roster.workers["w2"].connected = True
    others = [m.Warm("w2", 5), m.StartFailed("w2", POISON), m.Began("w2", 3, 0), m.Beat("w2")]
    for event in [*words("w2", generation=2), *words("w2", generation=1), *others]:
        changes_nothing(stage, event)


def test_a_removed_worker_says_what_it_saw_while_the_others_report() -> None:
    stage = training(4, per_group=2)
    stage.feed(m.Closed("w3"))  # w2 leaves with its group, and is still talking
    for event in words("w2", generation=1):
        changes_nothing(stage, event)
    stage.report("w0", "w1")
    assert (stage.opened.members, stage.opened.step) == (("w0", "w1"), 3)


def test_a_worker_that_was_let_go_has_no_say_any_more() -> None:
    stage = training(3)
    stage.feed(m.Scale(1, 2))
    stage.report(why="boundary")
    for event in [*words("w2", generation=1), *words("w2", generation=3)]:
        changes_nothing(stage, event)


def test_words_of_nobody_change_nothing() -> None:
    stage = training(2)
    for event in [*words("w9", generation=1), m.Warm("w9", 3), m.Beat("w9"), m.Closed("w9")]:
        changes_nothing(stage, event)
    changes_nothing(stage, m.GroupGone("g9", {"w9": "exit code 1"}))


def test_an_unknown_or_removed_worker_that_registers_is_fenced() -> None:
    stage = training(2).die("w1")
    stage.report()
    for worker in ("w9", "w1", "w0"):
        stage.news(m.Fence)
        if worker != "w0":  # w0 trains; its connection is one already
            stage.feed(m.Registered(worker, "n1", 7, {}))
            assert [a.worker for a in stage.news(m.Fence)] == [worker]


def test_doubled_words_change_nothing() -> None:
    stage = Stage(2, minimum=2).arrive("w0")
    for event in (m.Registered("w0", "n0", 1, {}), m.Warm("w0", 12)):
        if isinstance(event, m.Warm):
            changes_nothing(stage, event)
    stage.arrive("w1").seal("w0")
    changes_nothing(stage, m.Sealed("w0", 1, 0))
    stage.seal("w1").commit()
    changes_nothing(stage, m.Committed("w0", 1, 1, record(1)))
    changes_nothing(stage, m.Committed("w1", 1, 1, record(1)))
    stage.idle("w0")
    changes_nothing(stage, m.Idle("w0", 1, 1))
    stage.report("w0", why="broken")
    changes_nothing(stage, m.Reported("w0", Report(1, "broken", 1, cursor(1), None, ((0, 12),), True)))
    stage.feed(m.Closed("w1"))
    changes_nothing(stage, m.Closed("w1"))
    stage.feed(m.GroupGone("g1", {"w1": "exit code 1"}))
    changes_nothing(stage, m.GroupGone("g1", {"w1": "exit code 1"}))


def test_a_doubled_fault_does_not_make_two_of_one() -> None:
    stage = training(1)
    fault = Fault("compute", "ValueError: bad", "", 3, 0)
    event = m.Reported("w0", Report(1, "fault", 3, cursor(3), record(3), ((0, 12),), True, fault=fault))
    stage.feed(event)
    assert stage.opened.generation == 2
    stage.feed(event)
    assert stage.end is None


def test_a_worker_that_registers_twice_stays_connected() -> None:
    stage = training(2)
    stage.feed(m.Scale(1, 3), m.Registered("w2", "n2", 1, {}))
    changes_nothing(stage, m.Registered("w2", "n2", 1, {}))


def test_what_comes_all_the_time_costs_the_same_with_many_workers() -> None:
    """Counted in calls of Python functions, since times lie on a busy machine."""
    assert calls(5) == calls(50)


def calls(workers: int) -> int:
    import sys

    stage = training(workers)
    count = 0

    def note(frame: object, what: str, argument: object) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    said: list[m.Event] = [
        m.Beat("w0"),
        m.Began("w0", 3, 1),
        m.Waits("w0", 1),
        m.Committed("w0", 1, 4, record(4)),
    ]
    sys.setprofile(note)
    try:
        for event in said:
            stage.machine.handle(event)
    finally:
        sys.setprofile(None)
    return count

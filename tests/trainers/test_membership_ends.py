"""Pausing, cancelling, checkpoints and the end, in whatever phase they come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Phase
from trainers.stage import Stage, training


def waiting() -> Stage:
    return Stage(2, minimum=2).arrive("w0")


def forming() -> Stage:
    return Stage(2, minimum=2).arrive("w0", "w1").seal("w0")


def steady() -> Stage:
    return training(2)


def collecting() -> Stage:
    return training(3).die("w2").report("w0")


def kinds(stage: Stage) -> list[str]:
    return [c.kind for c in stage.news(m.Command)]


PHASES = [waiting, forming, steady, collecting]
AT_WORK = [forming, steady, collecting]


def settle(stage: Stage) -> None:
    """Whatever the phase: it trains again."""
    if stage.machine.phase is Phase.COLLECTING:
        stage.report()
    if stage.machine.phase is Phase.FORMING:
        stage.seal()
    assert stage.machine.phase is Phase.STEADY


# ---- asked to end ------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_job_ends_at_once(phase: Callable[[], Stage]) -> None:
    stage = phase()
    stage.news(m.End)
    stage.feed(m.Finish("cancelled", "by ana"))
    dismiss, end = stage.out
    assert isinstance(dismiss, m.Dismiss)
    assert set(dismiss.workers) == {w.id for w in stage.machine.roster.workers.values() if w.connected}
    assert end == m.End("cancelled", stage.machine.progress.step, None, "by ana")
    stage.news(m.End)
    stage.feed(m.Warm("w1", 12), m.Closed("w0"), m.Tick(99.0), m.Scale(1, 5))
    assert stage.out == [], "nothing happens after the end"


@pytest.mark.parametrize("phase", AT_WORK)
@pytest.mark.parametrize("why", ["paused", "preempted"])
def test_a_job_pauses_at_the_next_boundary_after_it_saved(why: str, phase: Callable[[], Stage]) -> None:
    stage = phase()
    stage.feed(m.Finish(why, None))  # type: ignore[arg-type]
    settle(stage)
    assert kinds(stage) == ["finish"], "told once"
    stage.commit().idle()
    assert stage.end is None, "not saved yet"
    stage.feed(m.CheckpointSaved(stage.machine.progress.step))
    assert stage.end == m.End(why, stage.machine.progress.step)  # type: ignore[arg-type]


def test_a_job_that_waits_for_its_first_workers_pauses_at_once() -> None:
    stage = waiting()
    stage.feed(m.Finish("paused"))
    assert stage.end == m.End("paused", 0)


def test_a_pause_outlives_the_generation_that_heard_of_it_first() -> None:
    stage = training(3)
    stage.feed(m.Finish("paused"))
    assert kinds(stage) == ["finish"]
    stage.die("w1").report()
    stage.seal()
    assert kinds(stage) == ["finish"], "the new generation has a log of its own"
    assert len(stage.all(m.StartGroup)) == 3, "nobody is started for a job that ends"
    stage.commit().idle()
    stage.feed(m.CheckpointSaved(4))
    assert stage.end is not None


def test_a_paused_job_whose_workers_all_die_ends_without_new_ones() -> None:
    stage = training(2)
    stage.feed(m.Finish("paused"))
    stage.die("w0").die("w1")
    assert stage.end == m.End("paused", 0), "what nobody could save will be computed again"
    assert stage.said("rollback") == [{"from": 3, "to": 0}], "and that is said"


def test_a_paused_job_whose_workers_all_die_goes_on_from_what_is_saved() -> None:
    stage = training(2)
    stage.feed(m.CheckpointSaved(2), m.Finish("paused"))
    stage.die("w0").die("w1")
    assert stage.end == m.End("paused", 2)
    assert stage.said("rollback") == [{"from": 3, "to": 2}]


def test_a_pause_does_not_turn_into_a_preemption_but_can_be_cancelled() -> None:
    stage = training(1)
    stage.feed(m.Finish("paused"), m.Finish("preempted"), m.Finish("cancelled"))
    assert stage.end is not None
    assert stage.end.outcome == "cancelled"


# ---- the last step -----------------------------------------------------------------------------


def test_a_job_has_succeeded_when_everyone_idles_and_the_last_step_is_saved() -> None:
    stage = training(2)
    stage.feed(m.CheckpointSaved(2))
    stage.idle("w0")
    stage.feed(m.CheckpointSaved(3))
    assert stage.end is None
    stage.idle("w1")
    assert stage.end == m.End("succeeded", 3)


def test_a_member_that_is_done_before_the_last_one_has_sealed_is_remembered() -> None:
    stage = training(3)
    stage.feed(m.CheckpointSaved(3))
    stage.die("w2").report()
    stage.seal("w0").idle("w0").seal("w1")
    assert stage.end is None
    stage.idle("w1")
    assert stage.end == m.End("succeeded", 3)


def test_nobody_joins_a_job_that_has_nothing_left_to_compute() -> None:
    stage = training(2)
    stage.idle("w0")
    stage.feed(m.Scale(1, 3))
    stage.arrive("w2")
    assert kinds(stage) == []
    stage.idle("w1")
    stage.feed(m.CheckpointSaved(3))
    assert stage.all(m.Dismiss)[-1].workers == ("w0", "w1", "w2")


def test_a_worker_died_while_the_last_checkpoint_was_written() -> None:
    stage = training(3).idle()
    stage.die("w1").report()
    stage.seal()
    assert stage.end is None, "idle in an older generation does not count"
    stage.idle()
    stage.feed(m.CheckpointSaved(3))
    assert stage.end == m.End("succeeded", 3)


# ---- checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", AT_WORK)
def test_a_checkpoint_that_is_asked_for_is_told_to_every_generation_until_it_is_saved(
    phase: Callable[[], Stage],
) -> None:
    stage = phase()
    stage.feed(m.CheckpointWanted("asked for"))
    settle(stage)
    assert "checkpoint" in kinds(stage)
    stage.report(why="broken").seal()
    assert "checkpoint" in kinds(stage)
    stage.commit()
    stage.feed(m.CheckpointSaved(stage.machine.progress.step))
    stage.report(why="broken").seal()
    assert kinds(stage) == []


def test_a_checkpoint_of_before_is_not_the_one_that_was_asked_for() -> None:
    stage = training(2)
    stage.feed(m.CheckpointWanted("asked for"), m.CheckpointSaved(2))
    stage.news(m.Command)
    stage.report(why="broken").seal()
    assert kinds(stage) == ["checkpoint"]


def test_a_checkpoint_may_be_asked_for_while_everybody_idles() -> None:
    stage = training(2).idle()
    stage.feed(m.CheckpointWanted("checkpoint 3 failed"))
    assert kinds(stage) == ["checkpoint"]
    stage.feed(m.CheckpointSaved(3))
    assert stage.end is not None


def test_commands_are_numbered_across_generations() -> None:
    stage = training(2)
    stage.feed(m.CheckpointWanted("one"), m.CheckpointWanted("two"))
    stage.report(why="broken").seal()
    numbers = [c.number for c in stage.all(m.Command)]
    assert numbers == sorted(set(numbers))


# ---- too few -----------------------------------------------------------------------------------


def test_below_min_the_survivors_wait_for_a_replacement() -> None:
    stage = training(3)
    stage.feed(m.Scale(3, 3))
    stage.die("w1").report()
    assert stage.machine.phase is Phase.COLLECTING
    stage.wait(30.0).arrive("w3")
    assert stage.opened.members == ("w0", "w2", "w3")
    assert (stage.opened.step, stage.opened.restore) == (3, False)
    stage.die("w2").report()
    assert stage.machine.below_since == stage.machine.fleet.now, "the time counts anew"


def test_below_min_for_too_long_the_survivors_save_and_the_attempt_gives_up() -> None:
    stage = training(3)
    stage.feed(m.Scale(3, 3))
    stage.die("w1").report()
    stage.wait(59.5)
    assert stage.machine.phase is Phase.COLLECTING
    stage.wait(1.0)
    assert stage.opened.members == ("w0", "w2")
    stage.seal().commit()
    assert "finish" in kinds(stage)
    started = len(stage.all(m.StartGroup))
    stage.feed(m.GroupGone("g3", {"w3": "exit code 1"}))
    stage.wait(5.0).idle()
    assert len(stage.all(m.StartGroup)) == started, "nobody is started for an attempt that gives up"
    stage.feed(m.CheckpointSaved(4))
    assert stage.end == m.End("preempted", 4, None, "fewer than 3 workers for 60 s")


def test_below_min_with_nobody_left_the_attempt_gives_up_without_a_checkpoint() -> None:
    stage = training(2)
    stage.feed(m.Scale(2, 2))
    stage.die("w0").die("w1").wait(61.0)
    assert stage.end == m.End("preempted", 0, None, "fewer than 2 workers for 60 s")
    assert stage.said("rollback") == [{"from": 3, "to": 0}]


def test_a_lower_min_ends_the_wait() -> None:
    stage = training(3)
    stage.feed(m.Scale(3, 3))
    stage.die("w1").report()
    stage.feed(m.Scale(1, 3))
    assert stage.opened.members == ("w0", "w2")

"""Notices: workers that are told to end leave with nothing lost. Incidents on the pure machine."""

from __future__ import annotations

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Phase
from elastrain.trainers.membership.roster import State
from trainers.stage import Stage, training

# ---- others stay -------------------------------------------------------------------------------


def test_a_worker_with_a_notice_is_replaced_at_once_and_left_out_at_the_next_boundary() -> None:
    stage = training(3).notice("w1")
    assert [a.workers for a in stage.all(m.StartGroup)][-1] == ("w3",)
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]
    assert stage.said("worker.notice") == [{"worker": "w1", "group": "g1", "why": "SIGTERM", "grace_s": 30.0}]
    stage.commit().report(why="boundary")
    assert stage.all(m.Dismiss) == [m.Dismiss(("w1",), "no longer needed")]
    opened = stage.opened
    assert (opened.members, opened.step, opened.restore, opened.hold) == (("w0", "w2"), 4, False, False)
    stage.die("w1", "exit code 0").seal().commit()
    assert stage.said("worker.lost") == stage.said("rollback") == stage.all(m.Halt) == []


def test_a_second_notice_changes_nothing_and_a_shorter_one_counts() -> None:
    stage = training(3).notice("w1", "w1").wait(2.0).notice("w1")
    assert len(stage.said("worker.notice")) == 1
    assert len(stage.all(m.StartGroup)) == 4
    stage.notice("w1", grace_s=3.0)
    assert [d["grace_s"] for d in stage.said("worker.notice")] == [30.0, 3.0]
    stage.wait(1.5)
    assert len(stage.all(m.Halt)) == 1


def test_a_notice_to_one_makes_its_whole_group_leave() -> None:
    stage = training(4, per_group=2).notice("w3").report(why="boundary")
    assert stage.all(m.Dismiss)[-1].workers == ("w2", "w3")
    assert (stage.opened.members, stage.opened.restore) == (("w0", "w1"), False)


def test_owner_and_buddy_get_the_notice_together_and_leave_one_after_the_other() -> None:
    stage = training(4).notice("w0", "w1").report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w1", "w2", "w3"), False)
    stage.seal().commit().report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w2", "w3"), False)
    assert stage.said("worker.lost") == []


def test_a_notice_while_the_next_generation_is_agreed_on_takes_effect_in_it() -> None:
    stage = training(3)
    stage.feed(m.Closed("w2"))
    stage.report("w0").notice("w1").report("w1")
    assert (stage.opened.members, stage.opened.restore) == (("w0", "w1"), False), "their blocks are on w1"
    stage.seal().report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w0",), False)


def test_a_notice_while_a_generation_forms_waits_until_it_has_formed() -> None:
    stage = Stage(2, minimum=2).arrive("w0", "w1")
    stage.feed(m.Scale(1, 2))
    stage.notice("w1").seal("w0")
    assert stage.news(m.Command) == []
    stage.seal("w1")
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]


def test_a_notice_and_then_a_kill_before_the_boundary_is_a_loss_that_nobody_is_blamed_for() -> None:
    stage = training(3)
    stage.began("w1", 2).notice("w1").die("w1").report("w0", "w2")
    assert (stage.opened.members, stage.opened.restore) == (("w0", "w2"), False)
    assert stage.machine.fleet.blame.vanished == {}
    assert stage.machine.roster.slots[1].failures == 0
    assert [a.workers for a in stage.all(m.StartGroup)][-1] == ("w3",), "it was replaced already"


def test_a_worker_with_a_notice_trains_on_while_too_few_would_be_left() -> None:
    stage = training(3)
    stage.feed(m.Scale(3, 3))
    stage.notice("w2", grace_s=600.0).commit().commit()
    assert stage.news(m.Command) == []
    stage.arrive("w3")
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]
    stage.report(why="boundary")
    assert stage.opened.members == ("w0", "w1", "w3")


def test_a_worker_with_a_notice_is_not_wanted_again_when_the_target_goes_up() -> None:
    stage = training(2)
    stage.feed(m.Scale(1, 1))
    stage.notice("w1")
    stage.feed(m.Scale(1, 2))
    assert [a.workers for a in stage.all(m.StartGroup)][-1] == ("w2",)
    stage.report(why="boundary")
    assert stage.opened.members == ("w0",)


def test_a_notice_to_a_worker_that_starts_ends_it_and_another_one_is_started() -> None:
    stage = training(1)
    stage.feed(m.Scale(1, 2), m.Registered("w1", "n1", 1, {}))
    stage.notice("w1")
    assert stage.all(m.Dismiss) == [m.Dismiss(("w1",), "no longer needed")]
    assert [a.workers for a in stage.all(m.StartGroup)][-1] == ("w2",)
    stage.die("w1", "exit code 0")
    assert stage.said("worker.lost") == []


# ---- the boundary does not come in time --------------------------------------------------------


def test_half_of_the_time_is_for_a_boundary_and_then_the_step_is_interrupted() -> None:
    stage = training(3).notice("w1").wait(14.5)
    assert stage.all(m.Halt) == []
    stage.wait(0.5)
    assert [h.workers for h in stage.all(m.Halt)] == [("w0", "w1", "w2")]
    stage.report(step=3, done=(1,))
    assert (stage.opened.members, stage.opened.step, stage.opened.restore) == (("w0", "w2"), 3, False)


def test_owner_and_buddy_in_haste_hand_over_and_nothing_is_computed_between() -> None:
    stage = training(4).notice("w0", "w1").wait(15.0).report()
    assert stage.opened.members == ("w1", "w2", "w3")
    stage.seal()
    assert len(stage.all(m.Halt)) == 2, "the next generation ends as soon as it has formed"
    stage.report()
    assert (stage.opened.members, stage.opened.restore) == (("w2", "w3"), False)
    assert len(stage.seal().all(m.Halt)) == 2


def test_too_few_are_left_to_train_but_not_too_few_to_take_over_the_state() -> None:
    stage = training(3)
    stage.feed(m.Scale(3, 3))
    stage.notice("w0", "w1").wait(15.0).report()
    assert (stage.opened.members, stage.opened.hold) == (("w1", "w2"), True), "w0 could go at once"
    stage.seal().report()
    assert stage.machine.phase is Phase.COLLECTING
    assert stage.machine.roster.workers["w1"].state is State.LEAVING
    stage.arrive("w3", "w4")
    assert (stage.opened.members, stage.opened.restore) == (("w2", "w3", "w4"), False)
    assert (stage.opened.step, stage.opened.hold) == (3, False)


# ---- nobody stays ------------------------------------------------------------------------------


def test_the_only_worker_gets_a_notice_and_hands_over_to_its_replacement() -> None:
    stage = training(1).notice("w0")
    assert [c.kind for c in stage.news(m.Command)] == ["checkpoint"], "in case nobody comes in time"
    stage.arrive("w1").commit()
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]
    stage.report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w0", "w1"), False)
    stage.seal().commit().report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w1",), False)


def test_the_only_worker_saves_in_time_and_its_replacement_goes_on_at_that_step() -> None:
    stage = training(1).notice("w0").commit().wait(15.0).report()
    assert (stage.opened.members, stage.opened.hold, stage.opened.restore) == (("w0",), True, False)
    stage.seal().idle()
    assert stage.all(m.Dismiss) == [], "not before it is saved"
    stage.saved = 4
    stage.feed(m.CheckpointSaved(4))
    assert stage.all(m.Dismiss) == [m.Dismiss(("w0",), "no longer needed")]
    stage.die("w0", "exit code 0").arrive("w1")
    opened = stage.opened
    assert (opened.members, opened.restore, opened.step, opened.hold) == (("w1",), True, 4, False)
    stage.seal().commit()
    assert [a.step for a in stage.all(m.Accept)] == [1, 2, 3, 4, 5]
    assert stage.said("rollback") == stage.said("worker.lost") == []


def test_a_replacement_that_comes_while_the_last_ones_save_takes_over_from_their_memory() -> None:
    stage = training(2).notice("w0", "w1").wait(15.0).report()
    assert (stage.opened.members, stage.opened.hold) == (("w0", "w1"), True)
    stage.seal().idle("w0").arrive("w2")
    assert len(stage.all(m.Halt)) == 2, "who holds is halted as soon as somebody can take over"
    stage.report()
    assert (stage.opened.members, stage.opened.hold, stage.opened.restore) == (("w1", "w2"), False, False)
    stage.seal().report()
    assert (stage.opened.members, stage.opened.step, stage.opened.restore) == (("w2",), 3, False)


def test_all_have_left_and_nobody_comes_so_the_attempt_ends_at_that_step() -> None:
    stage = training(1, wait_s=20.0).notice("w0").wait(15.0).report().seal().idle()
    stage.feed(m.CheckpointSaved(3))
    stage.die("w0", "exit code 0").wait(21.0)
    assert stage.end is not None
    assert (stage.end.outcome, stage.end.step) == ("preempted", 3)


def test_a_pause_is_on_its_way_and_everybody_gets_a_notice() -> None:
    stage = training(1)
    stage.feed(m.Finish("paused"))
    stage.notice("w0").wait(15.0).report()
    assert stage.opened.hold
    stage.seal().idle()
    stage.feed(m.CheckpointSaved(3))
    assert stage.end is not None and (stage.end.outcome, stage.end.step) == ("paused", 3)


def test_the_job_is_at_its_end_anyway_when_the_time_runs_out() -> None:
    stage = training(2).notice("w0", "w1")
    stage.idle("w0").wait(20.0).idle("w1")
    stage.feed(m.CheckpointSaved(3))
    assert stage.end is not None and stage.end.outcome == "succeeded"
    assert stage.all(m.Halt) == []

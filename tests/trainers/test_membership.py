"""Generations: who is in the next one, and at which step it begins. Incidents on the pure machine."""

from __future__ import annotations

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Phase
from elastrain.trainers.membership.messages import Report
from trainers.stage import Stage, cursor, record, training

# ---- the first one -----------------------------------------------------------------------------


def test_training_begins_once_min_workers_are_warm() -> None:
    stage = Stage(3, minimum=2)
    assert [a.workers for a in stage.news(m.StartGroup)] == [("w0",), ("w1",), ("w2",)]
    stage.arrive("w1")
    stage.feed(m.Registered("w0", "n0", 1, {}))
    assert stage.news(m.Open) == []
    stage.feed(m.Warm("w0", 12))
    opened = stage.opened
    assert (opened.generation, set(opened.members), opened.restore) == (1, {"w0", "w1"}, True)
    stage.seal("w0")
    assert stage.machine.phase is Phase.FORMING
    stage.seal("w1")
    assert stage.machine.phase is Phase.STEADY
    assert stage.said("generation.formed")[0]["workers"] == list(opened.members)
    assert [d["worker"] for d in stage.said("worker.started")] == ["w1", "w0"]
    assert [d["worker"] for d in stage.said("worker.ready")] == ["w1", "w0"]


def test_a_new_attempt_goes_on_at_the_checkpoint_that_was_found() -> None:
    stage = Stage(1)
    stage.saved = 7
    stage.feed(m.Restored(7))
    stage.arrive("w0").seal().commit()
    assert [a.step for a in stage.all(m.Accept)] == [8]
    assert stage.said("rollback") == []
    assert stage.said("worker.joined")[0]["step"] == 7


def test_a_generation_that_breaks_while_it_restores_restores_again() -> None:
    stage = Stage(2, minimum=2)
    stage.saved = 7
    stage.arrive("w0", "w1")
    stage.feed(m.Reported("w0", Report(1, "broken", -1)))  # its file was damaged: it holds nothing
    stage.saved = 5
    stage.report("w1", step=7, held=((0, 6),), record=None)
    assert stage.opened.generation == 2
    assert stage.opened.restore
    stage.seal().commit()
    assert [a.step for a in stage.all(m.Accept)] == [6]
    assert stage.said("rollback") == [], "nothing that this attempt computed is lost"


# ---- coming and going --------------------------------------------------------------------------


def test_a_joiner_is_let_in_at_a_boundary_with_nobody_stopped() -> None:
    stage = training(2)
    stage.feed(m.Scale(1, 3), m.Registered("w2", "n2", 1, {}))
    assert stage.news(m.Command) == [], "who is not warm yet disturbs nobody"
    stage.feed(m.Warm("w2", 12))
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]
    stage.commit()
    stage.report("w0", why="boundary")
    assert stage.news(m.Halt) == [], "the others stop at the same boundary by themselves"
    stage.report("w1", why="boundary")
    opened = stage.opened
    assert opened.members == ("w0", "w1", "w2"), "members keep their ranks"
    assert (opened.step, opened.restore, opened.cause) == (4, False, "join")
    assert opened.whole == ("w0", "w1")
    assert set(opened.held) == {"w0", "w1"}
    stage.seal()
    assert stage.said("worker.joined")[-1] == {"worker": "w2", "group": "g2", "step": 4}


def test_a_joiner_that_dies_at_the_door_costs_one_re_forming_and_no_step() -> None:
    stage = training(2)
    stage.feed(m.Scale(1, 3))
    stage.arrive("w2").report("w0", why="boundary")
    stage.die("w2")
    stage.report("w1", why="boundary")
    assert stage.opened.members == ("w0", "w1")
    assert (stage.opened.step, stage.opened.restore) == (3, False)


def test_a_worker_leaves_at_a_boundary_and_what_it_kept_stays() -> None:
    stage = training(3)
    stage.feed(m.Scale(1, 2))
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]
    stage.report("w0", "w1", "w2", why="boundary")
    dismissed = stage.all(m.Dismiss)[-1]
    assert dismissed.workers == ("w2",)
    assert stage.log.index(dismissed) < stage.log.index(stage.opened)
    assert (stage.opened.members, stage.opened.restore) == (("w0", "w1"), False)
    assert stage.opened.cause == "leave"
    stage.feed(m.Closed("w2"), m.GroupGone("g2", {"w2": "exit code 0"}))
    assert stage.said("worker.left") == [{"worker": "w2", "group": "g2"}]
    assert stage.said("worker.lost") == stage.said("worker.exited") == []


def test_owner_and_buddy_are_not_let_go_in_the_same_re_forming() -> None:
    stage = training(4)
    stage.feed(m.Scale(1, 1))
    for left in (("w0", "w1", "w3"), ("w0", "w1"), ("w0",)):
        stage.report(why="boundary")
        assert not stage.opened.restore
        assert len(stage.opened.members) <= len(left)
        stage.seal().commit()
        if stage.members == ("w0",):
            break
    assert stage.members == ("w0",)
    assert stage.said("rollback") == []


def test_a_target_that_went_down_and_up_again_lets_nobody_go() -> None:
    stage = training(3)
    stage.feed(m.Scale(1, 2), m.Scale(1, 3))
    assert stage.news(m.StartGroup) == []
    stage.report(why="boundary")
    assert stage.opened.members == ("w0", "w1", "w2")


def test_a_worker_that_should_leave_is_wanted_again_when_another_one_dies() -> None:
    stage = training(3)
    stage.feed(m.Scale(2, 2))
    stage.die("w1").report("w0", "w2")
    assert stage.opened.members == ("w0", "w2")
    stage.seal().commit()
    assert stage.news(m.StartGroup) == stage.news(m.Dismiss) == []


def test_the_only_worker_that_holds_the_state_stays_until_somebody_took_it_over() -> None:
    stage = training(2)
    stage.feed(m.Scale(1, 1))
    stage.notice("w1", grace_s=600.0).die("w0").report("w1")
    assert (stage.opened.members, stage.opened.restore) == (("w1",), False)
    stage.seal().commit()
    stage.news(m.Command)
    stage.commit()
    assert stage.news(m.Command) == [], "there is nobody yet to whom it could leave the job"
    stage.arrive("w2").report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w1", "w2"), False)
    stage.seal().commit().report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w2",), False)


def test_the_target_changes_while_a_generation_forms() -> None:
    stage = Stage(1)
    stage.arrive("w0")
    stage.feed(m.Scale(1, 2))
    stage.arrive("w1")
    assert stage.news(m.Command) == [], "who forms now is not asked to stop before it has begun"
    stage.seal("w0")
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]


# ---- deaths ------------------------------------------------------------------------------------


def test_a_death_halts_the_others_at_once_and_costs_no_step() -> None:
    stage = training(3)
    stage.feed(m.Closed("w1"))
    halts = stage.news(m.Halt)
    assert [(h.generation, h.workers) for h in halts] == [(1, ("w0", "w2"))]
    stage.report("w0", "w2")
    opened = stage.opened
    assert (opened.generation, opened.members, opened.step) == (2, ("w0", "w2"), 3)
    assert not opened.restore
    assert opened.cause == "w1 lost"


def test_a_death_in_every_phase_of_one_re_forming() -> None:
    stage = training(4)
    stage.die("w3")  # while training
    stage.report("w0")
    stage.die("w2", "exit code 1")  # while the reports are collected; w3 was not its buddy
    stage.report("w1")
    assert stage.opened.members == ("w0", "w1")
    assert stage.opened.restore, "w2 and its buddy w3 are gone together"
    stage.seal("w0")
    stage.die("w1")  # while the next generation forms
    stage.report("w0", step=0, held=((0, 12),))
    assert (stage.opened.members, stage.opened.restore) == (("w0",), False)
    stage.seal().commit()
    assert stage.machine.progress.step == 1
    assert len(stage.said("rollback")) == 1


def test_a_death_while_forming_goes_back_to_what_is_held_then() -> None:
    stage = training(3)
    stage.die("w0").report("w1", "w2")
    everything = ((0, 12),)  # two are left: each of them is on its way to hold all blocks
    stage.die("w1")
    stage.report("w2", held=everything)
    assert (stage.opened.members, stage.opened.restore, stage.opened.step) == (("w2",), False, 3)


def test_both_workers_of_a_group_leave_when_one_of_them_dies() -> None:
    stage = training(4, per_group=2)
    stage.feed(m.Closed("w2"))
    assert {d["worker"] for d in stage.said("worker.lost")} == {"w2", "w3"}
    assert stage.all(m.StopGroup) == [m.StopGroup("g1", kill=True)]
    assert stage.all(m.Halt)[-1].workers == ("w0", "w1")
    stage.report("w0", "w1")
    assert stage.opened.members == ("w0", "w1")
    assert not stage.opened.restore, "owner and buddy are never in one group if there are two"


def test_members_that_all_feel_a_broken_peer_are_halted_once() -> None:
    stage = training(4)
    for worker in ("w0", "w2", "w3"):
        stage.report(worker, why="broken", detail="connection reset")
    stage.feed(m.Closed("w1"))
    assert len(stage.all(m.Halt)) == 1
    assert stage.opened.members == ("w0", "w2", "w3")


def test_a_member_that_has_sealed_is_halted_when_another_could_not() -> None:
    stage = Stage(3, minimum=3).arrive("w0", "w1", "w2").seal("w0")
    stage.report("w1", why="broken", detail="connection reset")
    assert [h.workers for h in stage.all(m.Halt)] == [("w0", "w2")]
    stage.report("w2")
    assert stage.opened.generation == 1
    stage.report("w0")
    assert (stage.opened.generation, stage.opened.restore, stage.opened.cause) == (2, False, "start")


def test_the_cause_of_a_generation_is_its_own() -> None:
    stage = training(3).die("w1").report()
    assert stage.opened.cause == "w1 lost"
    stage.seal().report(why="broken")
    assert stage.opened.cause == "re-forming"
    stage.seal()
    assert [d["cause"] for d in stage.said("generation.formed")] == ["start", "w1 lost", "re-forming"]
    assert [d["worker"] for d in stage.said("worker.joined")] == ["w0", "w1", "w2"], "each once"


def test_everybody_died_and_new_workers_go_on_from_the_checkpoint() -> None:
    stage = training(2)
    stage.feed(m.CheckpointSaved(2))
    stage.saved = 2
    stage.die("w0").die("w1")
    assert stage.machine.phase is Phase.COLLECTING
    stage.arrive("w2")
    assert (stage.opened.members, stage.opened.restore) == (("w2",), True)
    assert stage.said("rollback") == [{"from": 3, "to": 2}]
    stage.seal().commit()
    assert stage.all(m.Accept)[-1].step == 3


def test_a_damaged_checkpoint_leads_further_back_and_only_once() -> None:
    stage = training(2)
    stage.feed(m.CheckpointSaved(3))
    stage.saved = 1  # that of step 3 cannot be read
    stage.die("w0").die("w1").arrive("w2").seal()
    assert stage.said("rollback") == [{"from": 3, "to": 1}]
    assert stage.said("generation.formed")[-1]["step"] == stage.said("worker.joined")[-1]["step"] == 1
    stage.arrive("w3").commit().report(why="boundary")
    assert (stage.opened.restore, stage.opened.step) == (False, 2)
    assert [a.step for a in stage.all(m.Accept)] == [1, 2, 3, 2]


# ---- which step counts -------------------------------------------------------------------------


def test_a_record_that_only_the_dead_worker_saw_counts_if_it_could_still_tell() -> None:
    stage = training(3).commit("w0", 4)
    stage.die("w0").report("w1", "w2", step=3)
    opened = stage.opened
    assert (opened.step, opened.record, opened.restore) == (4, record(4), False)
    assert opened.cursor == cursor(3), "the record leads from there"
    assert (opened.whole, opened.done) == ((), {})


def test_a_record_that_nobody_could_tell_of_is_computed_again() -> None:
    stage = training(3)
    stage.die("w0").report("w1", step=3, done=(1, 4)).report("w2", step=3, done=(2,))
    opened = stage.opened
    assert (opened.step, opened.record) == (3, None)
    assert opened.done == {"w1": (1, 4), "w2": (2,)}, "finished microbatches stay where they are"
    stage.seal().commit()
    assert [a.step for a in stage.all(m.Accept)] == [1, 2, 3, 4]


def test_one_survivor_that_committed_lifts_the_others() -> None:
    stage = training(3)
    stage.die("w0").report("w1", step=3, done=(0,)).report("w2", step=4, whole=False)
    opened = stage.opened
    assert (opened.step, opened.record, opened.cursor) == (4, record(4), cursor(4))
    assert opened.whole == ()
    assert opened.done == {"w2": ()}, "what w1 had done belongs to a step that is over"
    assert stage.all(m.Accept)[-1] == m.Accept(4, record(4))


def test_a_report_that_overtakes_the_records_of_rank_0_leaves_no_gap() -> None:
    stage = training(3)
    stage.feed(m.Closed("w2"))
    stage.report("w1", step=5)  # the words of w0 take longer
    stage.commit("w0", 4).commit("w0", 5)
    stage.report("w0", step=5)
    assert [a.step for a in stage.all(m.Accept)] == [1, 2, 3, 4, 5]
    assert all(a.cursor is None for a in stage.all(m.Accept))


def test_records_that_were_lost_with_their_senders_count_by_the_one_after_them() -> None:
    stage = training(3)
    stage.die("w0").report("w1", step=6).report("w2", step=5)
    accepted = stage.all(m.Accept)[-1]
    assert accepted == m.Accept(6, record(6), cursor(6)), "whoever counts on is told where"
    assert (stage.opened.step, stage.opened.record) == (6, record(6))


def test_rank_0_and_its_buddy_send_every_record_and_it_counts_once() -> None:
    stage = training(2)
    stage.commit("w1", 4).commit("w0", 4).commit("w0", 5).commit("w1", 5)
    assert [a.step for a in stage.all(m.Accept)] == [1, 2, 3, 4, 5]


def test_a_step_that_was_committed_before_the_last_member_said_sealed_is_not_forgotten() -> None:
    stage = training(3)
    stage.die("w2").report("w0", "w1")
    stage.seal("w0").commit("w0", 4)
    stage.seal("w1")
    assert stage.machine.progress.step == 4
    stage.die("w0").report("w1", step=3)
    assert (stage.opened.step, stage.opened.record) == (4, record(4))
    assert [a.step for a in stage.all(m.Accept)] == [1, 2, 3, 4]


def test_owner_and_buddy_died_together_and_the_rollback_says_so() -> None:
    stage = training(4)
    stage.feed(m.CheckpointSaved(2))
    stage.saved = 2
    stage.feed(m.Closed("w0"), m.Closed("w1"))
    stage.report("w2", "w3", step=4)
    assert stage.opened.restore
    assert stage.said("rollback") == [{"from": 4, "to": 2}]
    stage.seal().commit()
    assert [a.step for a in stage.all(m.Accept)] == [1, 2, 3, 4, 3]


def test_a_rollback_before_the_first_checkpoint_begins_from_the_seed() -> None:
    stage = training(4)
    stage.feed(m.Closed("w0"), m.Closed("w1"))
    stage.report("w2", "w3")
    assert stage.said("rollback") == [{"from": 3, "to": 0}]

"""Groups of workers: started, silent, let go, lost, replaced; and what the user's code did wrong."""

from __future__ import annotations

import pytest

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.messages import Fault
from elastrain.trainers.membership.roster import State
from trainers.stage import Stage, cursor, record, training

# ---- busy, silent, frozen ----------------------------------------------------------------------


def test_a_driver_that_stood_still_for_minutes_finds_nobody_dead() -> None:
    stage = training(3)
    stage.feed(m.Waits("w0", 1))
    for minutes in range(1, 20):
        stage.feed(m.Tick(60.0 * minutes))
        for worker in stage.members:
            stage.feed(m.Beat(worker))
    assert stage.all(m.Fence) == []


def test_a_silent_worker_that_nobody_waits_for_is_left_alone_for_ten_beats() -> None:
    stage = training(2).wait(20.0, silent=("w1",))
    assert stage.all(m.Fence) == []
    stage.wait(0.5, silent=("w1",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]


def test_a_silent_worker_that_others_wait_for_is_removed_after_two_beats() -> None:
    stage = training(2)
    stage.feed(m.Waits("w0", 1))
    stage.wait(4.0, silent=("w1",))
    assert stage.all(m.Fence) == []
    stage.wait(0.5, silent=("w1",))
    assert stage.all(m.Fence) == [m.Fence("w1", "silent for 4.5 s")]
    assert stage.said("worker.lost") == [{"worker": "w1", "group": "g1", "cause": "no heartbeat"}]
    assert m.StopGroup("g1", kill=True) in stage.log
    assert stage.all(m.Halt)[-1].workers == ("w0",)
    stage.feed(m.GroupGone("g1", {"w1": "signal 9 (SIGKILL)"}))
    assert "(after it was removed)" in next(
        a.message for a in stage.all(m.Say) if a.type == "worker.exited"
    ), "that signal was ours"


def test_one_slow_step_long_ago_does_not_make_silence_worse() -> None:
    stage = training(2)
    stage.feed(m.Waits("w0", 1))
    stage.commit().wait(19.0, silent=("w1",))
    assert stage.all(m.Fence) == [], "they had met again since"


def test_a_busy_worker_that_beats_is_never_removed() -> None:
    stage = training(2)
    stage.feed(m.Waits("w0", 1))
    stage.wait(600.0)
    assert stage.all(m.Fence) == []


def test_a_driver_that_hears_nobody_removes_at_most_half_of_them_at_once() -> None:
    stage = training(4)
    for worker in stage.members:
        stage.began(worker)
    stage.wait(20.0, silent=("w0", "w1", "w2", "w3"))
    left = []
    for _ in range(3):
        stage.wait(0.5, silent=("w0", "w1", "w2", "w3"))
        left.append(len(stage.machine.generation.survivors))
    assert left == [2, 1, 0]
    assert stage.machine.fleet.blame.vanished == {}, "nobody vanished"


def test_half_is_counted_in_workers_though_groups_leave_as_a_whole() -> None:
    stage = training(8, per_group=4)
    stage.wait(20.5, silent=stage.members)
    assert len(stage.machine.generation.survivors) == 4


def test_a_frozen_worker_comes_back_and_is_not_heard() -> None:
    stage = training(3)
    stage.feed(m.Waits("w0", 1))
    stage.wait(5.0, silent=("w2",)).report("w0", "w1")
    assert stage.opened.members == ("w0", "w1")
    stage.seal().news(m.Open)
    assert not stage.machine.roster.workers["w2"].connected
    stage.feed(m.Beat("w2"), m.Committed("w2", 1, 9, record(9)), m.Registered("w2", "n2", 1, {}))
    assert stage.out == [m.Fence("w2", "not expected: unknown, or removed")]


def test_a_worker_that_freezes_while_the_others_report_is_removed_after_two_beats() -> None:
    stage = training(3)
    stage.feed(m.Closed("w0"))
    stage.report("w1").wait(4.5, silent=("w2",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w2"]


def test_a_worker_that_imports_for_long_is_not_silent_but_late() -> None:
    stage = training(1, start_timeout_s=50.0)
    stage.feed(m.Scale(1, 2), m.Registered("w1", "n1", 1, {}))
    stage.wait(49.0, silent=("w1",))
    assert stage.all(m.Fence) == []
    stage.wait(2.0, silent=("w1",))
    assert m.StopGroup("g1", kill=True) in stage.log
    assert stage.said("worker.lost")[0]["cause"] == "not ready after 50 s"


# ---- replacement -------------------------------------------------------------------------------


def test_a_replacement_is_started_only_when_the_lost_group_has_ended_for_certain() -> None:
    stage = training(2)
    stage.feed(m.Closed("w1"))
    stage.wait(5.0)
    assert [a.group for a in stage.all(m.StartGroup)] == ["g0", "g1"]
    stage.feed(m.GroupGone("g1", {"w1": "signal 9 (SIGKILL)"}))
    assert stage.all(m.StartGroup)[-1] == m.StartGroup("g2", ("w2",)), "a worker that had trained: at once"
    assert stage.said("worker.exited") == [{"worker": "w1", "group": "g1", "cause": "signal 9 (SIGKILL)"}]
    assert all("removed" not in a.message for a in stage.all(m.Say))


def test_a_group_that_never_commits_is_tried_later_and_later_and_then_given_up() -> None:
    stage = Stage(1)
    waited = []
    for number in range(5):
        assert stage.end is None
        stage.feed(m.GroupGone(f"g{number}", {f"w{number}": "exit code 1"}))
        before = stage.clock
        while stage.end is None and len(stage.all(m.StartGroup)) == number + 1:
            stage.wait(0.5)
        waited.append(stage.clock - before)
    assert waited == [1.0, 2.0, 5.0, 10.0, 0.0]
    assert stage.end is not None
    assert (stage.end.outcome, stage.end.failed_by) == ("failed", "infrastructure")
    assert stage.end.message == (
        "group slot 0 failed 5 times without a committed step: "
        "exit code 1; exit code 1; exit code 1; exit code 1; exit code 1"
    )


def test_a_worker_that_had_trained_is_no_failed_start() -> None:
    stage = training(1)
    stage.die("w0")
    for number in range(1, 5):
        stage.feed(m.GroupGone(f"g{number}", {f"w{number}": "exit code 1"}))
        stage.wait(11.0)
    assert stage.end is None, "four starts failed, not five"
    stage.feed(m.GroupGone("g5", {"w5": "exit code 1"}))
    assert stage.end is not None


def test_a_group_that_is_dying_cannot_be_let_go() -> None:
    stage = training(3)
    stage.feed(m.Closed("w2"), m.Scale(1, 2))
    assert stage.said("worker.left") == []
    stage.feed(m.GroupGone("g2", {}))
    assert len(stage.all(m.StartGroup)) == 3, "it is not replaced either"


def test_a_committed_step_makes_up_for_failed_starts() -> None:
    stage = Stage(1)
    for number in range(4):
        stage.feed(m.GroupGone(f"g{number}", {}))
        stage.wait(11.0)
    stage.arrive("w4").seal().commit().die("w4")
    for number in range(5, 9):
        stage.feed(m.GroupGone(f"g{number}", {}))
        stage.wait(11.0)
    assert stage.end is None


def test_a_worker_that_was_let_go_and_does_not_end_is_killed() -> None:
    stage = training(3)
    stage.feed(m.Scale(1, 2))
    stage.report(why="boundary").seal()
    assert m.StopGroup("g2", kill=False) in stage.log
    stage.wait(60.0)
    assert m.StopGroup("g2", kill=True) not in stage.log
    stage.wait(1.0)
    assert stage.all(m.StopGroup).count(m.StopGroup("g2", kill=True)) == 1
    stage.feed(m.Closed("w2"))
    assert stage.machine.roster.workers["w2"].state is State.LEAVING, "its process may still run"
    stage.feed(m.GroupGone("g2", {"w2": "signal 9 (SIGKILL)"}))
    assert stage.machine.roster.workers["w2"].state is State.ENDED


def test_a_worker_that_should_leave_and_cannot_yet_is_not_killed_for_it() -> None:
    stage = training(3)
    stage.feed(m.Scale(2, 2))
    stage.die("w1").report().seal()  # w2 holds out until w1 is replaced
    stage.wait(120.0)
    assert stage.machine.members == ("w0", "w2")
    assert not [a for a in stage.all(m.StopGroup) if a.group == "g2"]


def test_a_worker_that_was_let_go_and_froze_is_fenced_and_killed() -> None:
    stage = training(3)
    stage.feed(m.Scale(1, 2))
    stage.report(why="boundary").seal().wait(21.0, silent=("w2",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w2"]
    assert m.StopGroup("g2", kill=True) in stage.log
    assert stage.machine.members == ("w0", "w1")
    assert stage.all(m.Halt) == [], "it was no member any more"


def test_a_worker_that_is_still_starting_and_no_longer_needed_cannot_be_told() -> None:
    stage = training(1)
    stage.feed(m.Scale(1, 2), m.Scale(1, 1))
    assert m.StopGroup("g1", kill=True) in stage.log
    stage.feed(m.Registered("w1", "n1", 1, {}))
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]


# ---- last words --------------------------------------------------------------------------------


def test_the_launcher_sees_a_death_before_its_last_words_are_heard() -> None:
    stage = training(3)
    stage.feed(m.GroupGone("g0", {"w0": "exit code 1"}))
    assert stage.said("worker.lost") == []
    stage.commit("w0", 4)
    stage.feed(m.Closed("w0"))
    assert stage.machine.progress.step == 4
    assert stage.all(m.Halt)[-1].workers == ("w1", "w2")
    assert stage.said("worker.exited") == [{"worker": "w0", "group": "g0", "cause": "exit code 1"}]


def test_a_node_that_is_lost_closes_no_connection() -> None:
    stage = training(3)
    stage.feed(m.GroupGone("g0", {"w0": "node lost"}))
    stage.wait(4.5, silent=("w0",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w0"]
    assert stage.all(m.Halt)[-1].workers == ("w1", "w2")
    assert stage.said("worker.exited")[0]["cause"] == "node lost"


# ---- whose fault -------------------------------------------------------------------------------


def test_an_exception_on_one_of_several_workers_removes_it() -> None:
    stage = training(2).raise_("w1", 3)
    assert stage.end is None
    assert stage.said("worker.lost")[0]["cause"] == "raised ValueError: bad (rank 1, step 3, microbatch 3)"
    assert stage.all(m.Halt)[-1].workers == ("w0",)


def test_the_same_microbatch_raises_on_the_next_worker_too() -> None:
    stage = training(2).raise_("w1", 3).report("w0").seal().raise_("w0", 3)
    assert stage.end is not None
    assert (stage.end.outcome, stage.end.failed_by) == ("failed", "user")
    assert stage.end.message == "ValueError: bad\n(on w0, rank 0, step 3, microbatch 3)\n\nline 1"


def test_another_microbatch_that_raises_is_another_matter() -> None:
    stage = training(3).raise_("w1", 3).report().seal().raise_("w0", 4)
    assert stage.end is None


def test_the_only_worker_tries_once_more() -> None:
    stage = training(1).raise_("w0", 3)
    assert (stage.opened.members, stage.opened.restore) == (("w0",), False)
    assert stage.said("worker.error") == [{"worker": "w0", "group": "g0"}]
    stage.seal().raise_("w0", 3)
    assert stage.end is not None
    assert stage.end.failed_by == "user"


def test_the_only_worker_raises_once_and_goes_on() -> None:
    stage = training(1).raise_("w0", 3).seal().commit().raise_("w0", 3)
    assert stage.end is None, "in another step"


def test_a_verdict_that_all_workers_share_ends_the_job_at_once() -> None:
    stage = training(3)
    stage.report("w1", step=4, why="fault", fault=Fault("verdict", "the loss of step 3 is not finite", ""))
    assert stage.end is not None
    assert stage.end.failed_by == "user"


def test_our_own_mistake_is_not_called_the_users() -> None:
    stage = training(2).raise_("w0", 1, "KeyError: 7", "internal").report("w1").seal()
    assert stage.end is None
    stage.raise_("w1", 1, "KeyError: 7", "internal")
    assert stage.end is not None
    assert stage.end.failed_by == "service"


def test_an_import_error_needs_no_second_look() -> None:
    stage = Stage(2)
    stage.feed(m.Registered("w0", "n0", 1, {}))
    stage.feed(m.StartFailed("w0", Fault("start", "ImportError: no torchvision", "", at_once=True)))
    assert stage.end is not None
    assert (stage.end.failed_by, stage.end.step) == ("user", 0)


@pytest.mark.parametrize(("per_group", "ends"), [(1, True), (2, False)])
def test_an_error_at_the_start_counts_once_per_start(per_group: int, ends: bool) -> None:
    stage = Stage(2, minimum=2, per_group=per_group)
    for worker in ("w0", "w1"):
        stage.feed(m.Registered(worker, "n0", 1, {}))
    for worker in ("w0", "w1"):
        stage.feed(m.StartFailed(worker, Fault("start", "OSError: disk", "")))
    assert (stage.end is not None) == ends, "two workers of one group are one start"


def test_processes_vanish_at_the_same_step_in_three_generations() -> None:
    stage = training(3)
    for worker in ("w0", "w1"):
        stage.began(worker, 1).die(worker).report()
        assert stage.end is None
        stage.seal()
    stage.began("w2", 1).die("w2")
    assert stage.end is not None
    assert stage.end.failed_by == "user"
    assert "3 times in a row at step 3, microbatch 1 (w0, w1, w2)" in (stage.end.message or "")


def test_a_node_that_takes_four_workers_with_it_proves_nothing() -> None:
    stage = training(6)
    for worker in stage.members:
        stage.began(worker, 1)
    for worker in ("w1", "w2", "w3", "w4"):
        stage.die(worker)
    assert stage.end is None


def test_three_deaths_at_three_steps_prove_nothing() -> None:
    stage = training(4)
    for worker in ("w0", "w1", "w2"):
        stage.began(worker, 1).die(worker).report()
        stage.seal().commit()
    assert stage.end is None


def test_workers_that_die_after_their_step_was_committed_did_not_die_of_it() -> None:
    stage = training(4)
    for worker in stage.members:
        stage.began(worker, 1)
    stage.commit()
    for worker in ("w0", "w1", "w2"):
        stage.die(worker).report(held=((0, 12),))
        stage.seal()
    assert stage.end is None


def test_workers_that_are_told_to_end_do_not_vanish() -> None:
    stage = training(3)
    stage.feed(m.Scale(1, 2))
    stage.began("w2").report(why="boundary")
    stage.die("w2")
    assert stage.machine.fleet.blame.vanished == {}
    assert cursor(3) == {"step": 3}

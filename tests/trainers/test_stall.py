"""Members that beat and are waited for in vain: stuck in the user's code, or cut off from their peers."""

from __future__ import annotations

import pytest

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Phase
from elastrain.trainers.membership.roster import State
from elastrain.trainers.membership.stall import suspects
from trainers.stage import Stage, training


def wait(stage: Stage, seconds: float, *waiting: str, finished: int = 0) -> Stage:
    """Time passes and everybody beats; some say every second that they wait for their peers."""
    for _ in range(round(seconds)):
        number = stage.machine.generation.number
        stage.feed(*(m.Waits(w, number, finished) for w in waiting)).wait(1.0)
    return stage


def stuck(stage: Stage, worker: str, microbatch: int = 3) -> Stage:
    """The others wait for this one until something happens to it."""
    stage.began(worker, microbatch)
    others = [w for w in stage.members if w != worker]
    return wait(stage, stage.machine.stall.limit_s + 1, *others)


# ---- stuck -------------------------------------------------------------------------------------


def test_a_member_that_beats_and_never_ends_its_microbatch_is_removed_and_replaced() -> None:
    stage = stuck(training(3), "w1")
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]
    assert m.StopGroup("g1", kill=True) in stage.log
    cause = stage.said("worker.lost")[0]["cause"]
    assert cause == (
        "stuck: it said nothing for 300 s since it began microbatch 3 of step 3, while others waited for it"
    )
    assert stage.all(m.Halt)[-1].workers == ("w0", "w2")
    stage.report().seal().feed(m.GroupGone("g1", {"w1": "signal 9 (SIGKILL)"}))
    assert stage.members == ("w0", "w2")
    assert stage.all(m.StartGroup)[-1].group == "g3"


def test_the_only_survivor_never_reported_and_the_job_went_on_without_it() -> None:
    stage = training(2).began("w1", 3).die("w0")
    assert stage.machine.phase is Phase.COLLECTING
    wait(stage, stage.machine.stall.limit_s + 1)
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]
    stage.feed(m.GroupGone("g0", {}), m.GroupGone("g1", {}))
    joiner = stage.all(m.StartGroup)[-1].workers[0]
    stage.arrive(joiner).seal()
    assert stage.machine.phase is Phase.STEADY and stage.members == (joiner,)


def test_a_member_that_idled_and_got_stuck_does_not_keep_the_others_from_re_forming() -> None:
    """Found by hypothesis: who waits to be ended was never missed, also when it had to report."""
    stage = training(3).idle("w1").die("w0").report("w2")
    wait(stage, stage.machine.stall.limit_s + 1)
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]
    assert stage.members == ("w2",)


def test_people_are_told_at_half_the_limit_and_the_workers_log_shows_where_it_is() -> None:
    stage = training(2).began("w1", 3)
    wait(stage, 149, "w0")
    assert stage.said("worker.stalled") == []
    wait(stage, 100, "w0")
    assert [(d["worker"], d["silent_s"]) for d in stage.said("worker.stalled")] == [("w1", 150.5)]
    assert stage.all(m.Dump) == [m.Dump("w1")]
    assert stage.all(m.Fence) == []


def test_a_long_microbatch_is_not_a_stuck_one() -> None:
    stage = training(2)
    for microbatch in range(4):
        wait(stage.began("w1", microbatch), 290, "w0")
    assert stage.all(m.Fence) == []


def test_an_evaluation_or_a_download_that_goes_on_says_so() -> None:
    stage = training(2)
    for _ in range(10):
        stage.feed(m.Works("w1"))
        wait(stage, 100, "w0")
    assert stage.all(m.Fence) == []


def test_where_steps_take_long_the_limit_is_longer() -> None:
    stage = training(2)
    wait(stage.commit(), 60, "w0")
    stage.commit().wait(1.0)
    wait(stage.began("w1"), 580, "w0")
    assert stage.all(m.Fence) == []
    wait(stage, 40, "w0")
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]


def test_the_time_until_the_first_step_does_not_make_the_limit_longer() -> None:
    stage = Stage(2, minimum=2).arrive("w0", "w1").wait(200.0).seal().wait(200.0).commit().wait(1.0)
    assert stage.machine.stall.limit_s == 300.0


def test_nobody_is_removed_while_nobody_waits() -> None:
    stage = training(2).began("w0", 0).began("w1", 1).wait(1000.0)
    assert stage.all(m.Fence) == []
    assert len(stage.said("worker.stalled")) == 2, "but it is said"


def test_the_only_worker_is_not_removed_but_told_of() -> None:
    stage = training(1).began("w0", 0).wait(1000.0)
    assert stage.all(m.Fence) == []
    assert len(stage.said("worker.stalled")) == 1


def test_a_word_from_long_ago_is_no_waiting() -> None:
    stage = wait(training(3), 1, "w0", "w2")
    stage.began("w1").wait(1000.0)
    assert stage.all(m.Fence) == [], "all three may compute"


def test_a_member_that_idles_waits() -> None:
    stage = training(2).idle("w0").wait(301.0)
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]


def test_a_member_that_never_reports_is_removed_when_the_others_have() -> None:
    stage = training(4).began("w2").die("w0").report("w1", "w3")
    stage.wait(299.0)
    assert stage.machine.phase is Phase.COLLECTING
    stage.wait(2.0)
    assert [a.worker for a in stage.all(m.Fence)] == ["w2"]
    assert stage.opened.members == ("w1", "w3")


def test_of_one_silent_and_one_stuck_member_one_goes_in_one_tick() -> None:
    """Found by the simulation: each was half of the members, and together they were all."""
    stage = training(3).began("w2", 3)
    wait(stage, stage.machine.stall.limit_s - 3, "w0", "w1").die("w0")
    while not stage.all(m.Fence):
        stage.wait(0.5, silent=("w1",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]


def test_a_member_that_never_seals_is_removed() -> None:
    stage = Stage(3, minimum=3).arrive("w0", "w1", "w2")
    wait(stage, 302, "w0", "w2")
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]


def test_of_many_stuck_ones_half_go_at_a_time_and_never_who_waits() -> None:
    stage = training(4)
    for worker in ("w1", "w2", "w3"):
        stage.began(worker)
    wait(stage, 310, "w0")
    assert [a.worker for a in stage.all(m.Fence)] == ["w1", "w2", "w3"]
    assert stage.machine.roster.workers["w0"].state is State.ACTIVE


def test_a_microbatch_that_hangs_on_three_workers_is_the_users() -> None:
    stage = training(4)
    for worker in ("w1", "w2"):
        stuck(stage, worker).report().seal()
        assert stage.end is None
    stuck(stage, "w3")
    assert stage.end is not None
    assert (stage.end.outcome, stage.end.failed_by) == ("failed", "user")
    assert "microbatch 3 of step 3 was not done within 300 s on 3 workers (w1, w2, w3)" in (
        stage.end.message or ""
    )


def test_a_microbatch_that_hangs_on_the_last_worker_as_well_does_not_hang_the_job() -> None:
    stage = stuck(training(2), "w1").report().seal()
    stage.feed(m.GroupGone("g1", {"w1": "signal 9 (SIGKILL)"})).wait(1.0)
    stage.arrive("w2").began("w0", 3).wait(299.0)
    assert len(stage.all(m.Fence)) == 1
    stage.wait(2.0)
    assert [a.worker for a in stage.all(m.Fence)] == ["w1", "w0"]
    assert stage.opened.members == ("w2",) and stage.opened.restore
    stage.seal().commit().commit().commit().began("w2", 3).wait(1.0)
    stage.feed(m.GroupGone("g0", {"w0": "signal 9 (SIGKILL)"})).wait(2.0)
    stage.arrive("w3").wait(302.0)
    assert stage.end is not None and stage.end.failed_by == "user"


def test_the_last_worker_is_not_removed_for_a_microbatch_that_is_only_long() -> None:
    stage = training(2).die("w1").report().seal().began("w0", 2).wait(1.0)
    stage.arrive("w2").wait(1000.0)
    assert stage.all(m.Fence) == []


def test_three_hangs_in_different_microbatches_prove_nothing() -> None:
    stage = training(4)
    for number, worker in enumerate(("w1", "w2", "w3")):
        stuck(stage, worker, microbatch=number).report().seal()
    assert stage.end is None


def test_a_driver_that_stood_still_for_an_hour_finds_nobody_stuck() -> None:
    stage = training(2).began("w1")
    for hours in range(1, 20):
        stage.feed(m.Waits("w0", 1), m.Beat("w1"), m.Tick(3600.0 * hours))
    assert stage.all(m.Fence) == []


# ---- cut off -----------------------------------------------------------------------------------


def everybody_waits(stage: Stage, seconds: float, finished: int = 0) -> Stage:
    return wait(stage, seconds, *stage.members, finished=finished)


def answer(stage: Stage, **unreachable: tuple[str, ...]) -> Stage:
    number = stage.machine.generation.number
    stage.feed(*(m.Probed(w, number, unreachable.get(w, ())) for w in stage.members))
    return stage.wait(1.0)


def test_everybody_waits_for_seconds_so_they_probe_each_other() -> None:
    stage = everybody_waits(training(3), 10)
    assert stage.all(m.Probe) == []
    everybody_waits(stage, 5)
    assert stage.all(m.Probe) == [m.Probe(1, ("w0", "w1", "w2"))], "once"


def test_who_has_the_most_cuts_is_removed() -> None:
    stage = answer(everybody_waits(training(4), 12), w0=("w1",), w1=("w0", "w2", "w3"), w3=("w1",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]
    assert stage.said("worker.lost")[0]["cause"] == "cut off: no connection between it and w0, w2, w3"
    assert stage.report().seal().members == ("w0", "w2", "w3")


def test_a_cut_between_two_removes_the_higher_rank() -> None:
    stage = answer(everybody_waits(training(3), 12), w0=("w2",), w2=("w0",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w2"]


def test_a_cut_while_forming_is_found_as_well() -> None:
    stage = training(2)
    stage.feed(m.Closed("w1"))
    stage.report().seal().feed(m.GroupGone("g1", {})).wait(1.0)
    stage.arrive("w2").report(why="boundary")
    assert stage.machine.phase is Phase.FORMING
    answer(everybody_waits(stage, 12), w0=("w2",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w2"]


def test_a_cut_just_before_a_boundary_is_found_though_one_has_reported_already() -> None:
    stage = training(3).report("w0", why="boundary")
    assert stage.machine.phase is Phase.COLLECTING and stage.all(m.Halt) == []
    answer(wait(stage, 12, "w1", "w2"), w1=("w2",), w2=("w1",))
    assert [a.worker for a in stage.all(m.Fence)] == ["w2"]
    assert stage.all(m.Halt)[-1].workers == ("w1",)
    assert stage.report().opened.members == ("w0", "w1")


def test_never_more_than_half_are_removed_however_many_cannot_be_reached() -> None:
    cut = {w: tuple(o for o in ("w0", "w1", "w2", "w3") if o != w) for w in ("w0", "w1", "w2", "w3")}
    stage = answer(everybody_waits(training(4), 12), **cut)
    assert [a.worker for a in stage.all(m.Fence)] == ["w3", "w2"]


def test_who_does_not_answer_the_probe_is_not_waited_for_long() -> None:
    stage = everybody_waits(training(3), 12)
    stage.feed(m.Probed("w0", 1, ("w1",)), m.Probed("w2", 1, ("w1",)))
    everybody_waits(stage, 9)
    assert stage.all(m.Fence) == []
    everybody_waits(stage, 3)
    assert [a.worker for a in stage.all(m.Fence)] == ["w1"]


def test_a_slow_link_on_which_operations_get_through_is_no_cut() -> None:
    stage = training(2)
    for finished in range(60):
        everybody_waits(stage, 9, finished=finished)
    assert stage.all(m.Probe) == [] and stage.all(m.Halt) == []


def test_a_link_that_recovers_while_they_probe_costs_nothing() -> None:
    stage = everybody_waits(training(2), 12)
    stage.commit().wait(1.0)
    answer(stage, w0=("w1",), w1=("w0",))
    stage.began("w0").began("w1").wait(30.0)
    assert stage.all(m.Fence) == [] and stage.all(m.Halt) == []


def test_all_reach_all_and_nothing_arrives_so_the_same_members_meet_once_more() -> None:
    stage = answer(everybody_waits(training(2), 12))
    everybody_waits(stage, 46)
    assert stage.all(m.Halt) == []
    everybody_waits(stage, 4)
    assert len(stage.all(m.Halt)) == 1 and stage.all(m.Fence) == []
    assert stage.report().seal().members == ("w0", "w1")
    assert stage.said("generation.stalled") == [{"hangs": 1}]


def test_it_hangs_ever_more_rarely_and_the_third_time_they_meet_without_the_last() -> None:
    stage, took = training(3), []
    for _ in range(3):
        before, halts = stage.clock, len(stage.all(m.Halt))
        while len(stage.all(m.Halt)) == halts:
            everybody_waits(stage, 1)
            if stage.all(m.Probe):
                answer(stage)
        took.append(stage.clock - before)
        stage.report().seal()
    assert [round(t, -1) for t in took] == [60, 120, 240]
    assert [a.worker for a in stage.all(m.Fence)] == ["w2"]
    assert stage.members == ("w0", "w1")


def test_a_step_between_two_hangs_keeps_the_members_together() -> None:
    stage = training(2)
    for _ in range(4):
        halts = len(stage.all(m.Halt))
        while len(stage.all(m.Halt)) == halts:
            everybody_waits(stage, 1)
        stage.report().seal().commit().wait(1.0)
    assert stage.all(m.Fence) == []


@pytest.mark.parametrize(
    ("cuts", "found"),
    [
        ("", []),
        ("ab", ["b"]),
        ("ac", ["c"]),
        ("ab ac ad", ["a"]),
        ("ad bc bd cd", ["d", "c"]),
        ("ab cd", ["d", "b"]),
        ("ax", []),
    ],
)
def test_who_is_suspected(cuts: str, found: list[str]) -> None:
    assert suspects([frozenset(cut) for cut in cuts.split()], ["a", "b", "c", "d"]) == found

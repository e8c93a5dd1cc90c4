"""Hot spares: warm workers beyond the target, and none of them a member before it is needed."""

from __future__ import annotations

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.roster import State
from trainers.stage import Stage, training


def with_spare(workers: int = 2, spares: int = 1, **policy: int) -> Stage:
    """So many workers train; the youngest are spares, and warm."""
    stage = Stage(workers, minimum=workers, spares=spares, **policy)
    stage.arrive(*stage.machine.roster.workers).seal().commit().commit().commit()
    stage.feed(m.Scale(1, workers))
    stage.out.clear()
    return stage


def test_spares_are_started_beyond_the_target_and_are_no_members() -> None:
    stage = with_spare(2, spares=1)
    assert stage.members == ("w0", "w1")
    assert stage.machine.roster.workers["w2"].state is State.READY
    assert stage.wait(5.0).commit().news(m.Command) == [], "nobody who trains hears of it"


def test_a_spare_is_in_the_very_next_generation_after_a_death_and_a_new_one_is_started() -> None:
    stage = with_spare(3).die("w1").report("w0", "w2")
    assert (stage.opened.members, stage.opened.step, stage.opened.restore) == (("w0", "w2", "w3"), 3, False)
    assert [a.workers for a in stage.all(m.StartGroup)][-1] == ("w4",)
    stage.arrive("w4").seal().commit()
    assert stage.news(m.Command) == [], "the new one stands by"


def test_a_spare_takes_the_place_of_a_worker_with_a_notice_in_one_re_forming() -> None:
    stage = with_spare(3).notice("w1")
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]
    stage.commit().report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w0", "w2", "w3"), False)
    assert [a.workers for a in stage.all(m.StartGroup)][-1] == ("w4",)


def test_the_only_worker_hands_over_to_a_spare() -> None:
    stage = with_spare(1).notice("w0").report(why="boundary")
    assert stage.opened.members == ("w0", "w1"), "only this once are there two"
    stage.seal().commit().report(why="boundary")
    assert (stage.opened.members, stage.opened.restore) == (("w1",), False)


def test_a_spare_that_dies_is_replaced_and_nobody_else_is_told() -> None:
    stage = with_spare(2)
    for number in range(2, 9):  # more often than a crash loop would allow
        stage.die(f"w{number}").wait(1.0).arrive(f"w{number + 1}")
    assert stage.all(m.Halt) == stage.news(m.Command) == []
    assert stage.end is None


def test_a_spare_that_never_starts_does_not_end_a_job_that_has_its_workers() -> None:
    stage = Stage(2, minimum=2, spares=1).arrive("w0", "w1").seal().commit()
    stage.feed(m.Scale(1, 2))
    for number in range(2, 10):
        stage.feed(m.GroupGone(f"g{number}", {f"w{number}": "exit code 1"}))
        stage.wait(11.0)
    assert stage.end is None
    stage.die("w1").report("w0")
    assert stage.end is None


def test_a_higher_target_takes_the_spare_and_a_lower_one_keeps_it() -> None:
    stage = with_spare(2)
    stage.feed(m.Scale(1, 3))
    assert [c.kind for c in stage.news(m.Command)] == ["regroup"]
    stage.report(why="boundary")
    assert stage.opened.members == ("w0", "w1", "w2")
    stage.arrive("w3").seal()
    stage.feed(m.Scale(1, 1))
    for _ in range(2):
        stage.commit().report(why="boundary").seal()
    assert len(stage.members) == 1
    assert stage.machine.roster.workers["w3"].state is State.READY
    assert [a.workers for a in stage.all(m.StartGroup)][-1] == ("w3",)


def test_a_lower_target_is_not_taken_back_to_get_a_spare() -> None:
    stage = training(3, spares=1)
    stage.feed(m.Scale(1, 1))
    stage.wait(5.0).report(why="boundary").seal()
    assert len(stage.members) < 3


def test_spares_come_in_groups() -> None:
    stage = with_spare(2, spares=2, per_group=2)
    assert [a.workers for a in stage.all(m.StartGroup)] == [("w0", "w1"), ("w2", "w3")]
    assert stage.members == ("w0", "w1")
    stage.die("w0")
    assert (stage.opened.members, stage.opened.restore) == (("w2", "w3"), True), "nobody else held anything"


def test_four_workers_that_cannot_start_are_not_all_tried_five_times() -> None:
    stage = Stage(3, spares=1)
    for number in range(4):
        stage.feed(m.GroupGone(f"g{number}", {f"w{number}": "exit code 1"}))
    stage.wait(20.0)
    assert len(stage.all(m.StartGroup)) == 5, "one more at a time"
    stage.feed(m.Registered("w4", "n4", 1, {}), m.Closed("w4"))
    stage.wait(5.0)
    assert stage.end is None and len(stage.all(m.StartGroup)) == 5, "how it ended is still to be heard"
    stage.feed(m.GroupGone("g4", {"w4": "exit code 1"}))
    assert stage.end is not None and stage.end.failed_by == "infrastructure"
    assert stage.end.message == (
        "no worker became ready in 5 starts: exit code 1; exit code 1; exit code 1; exit code 1; exit code 1"
    )


def test_one_worker_that_starts_shows_that_starts_can_succeed() -> None:
    stage = Stage(3)
    for number in range(2):
        stage.feed(m.GroupGone(f"g{number}", {f"w{number}": "exit code 1"}))
    stage.wait(5.0)
    assert len(stage.all(m.StartGroup)) == 3, "the third has not failed yet"
    stage.arrive("w2").wait(5.0)
    assert len(stage.all(m.StartGroup)) == 5

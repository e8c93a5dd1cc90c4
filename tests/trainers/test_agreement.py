"""Reports of survivors, and what follows from them: incidents and properties."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.membership.agreement import holders, resume_point, useful
from elastrain.trainers.membership.messages import Report
from trainers.stage import cursor, record

BLOCKS = 6


def report(step: int, *held: tuple[int, int], whole: bool = False, done: tuple[int, ...] = ()) -> Report:
    return Report(1, "halted", step, cursor(step), None, held, whole, done)


def test_a_member_that_is_behind_counts_only_with_the_record_at_hand() -> None:
    behind = report(4, (0, 6))
    assert holders([behind], 5, (5, record(5))) == dict.fromkeys(range(6), 1)
    assert holders([behind], 5, None) == {}
    assert holders([behind], 5, (4, record(4))) == {}, "that record leads to where it is already"


def test_a_member_two_steps_behind_holds_nothing_of_use() -> None:
    assert holders([report(3, (0, 6))], 5, (5, record(5))) == {}


def test_a_joiner_that_got_nothing_yet_holds_nothing() -> None:
    assert holders([Report(1, "halted", -1)], 0, None) == {}
    assert not useful(Report(1, "halted", -1), 0, (0, {}))


def test_an_interrupted_handover_leaves_overlapping_ranges_that_count_once() -> None:
    assert holders([report(5, (0, 4), (2, 6))], 5, None) == dict.fromkeys(range(6), 1)


def test_who_is_behind_without_a_record_is_left_out_of_the_plan() -> None:
    """It will forget what it holds, so nobody may count on getting blocks from it."""
    opened = resume_point({"a": report(5, (0, 6), whole=True), "b": report(4, (0, 6))}, 5, None)
    assert set(opened.held) == {"a"}
    assert (opened.cursor, opened.record, opened.whole) == (cursor(5), None, ("a",))


def test_finished_microbatches_count_only_for_the_step_that_is_redone() -> None:
    reports = {"a": report(5, (0, 6), done=(1, 2)), "b": report(4, (0, 6), done=(0, 3))}
    opened = resume_point(reports, 5, (5, record(5)))
    assert opened.done == {"a": (1, 2)}
    assert opened.record == record(5)


def test_the_layout_that_most_survivors_hold_is_named_and_who_holds_something_else_is_not_in_it() -> None:
    layouts = {"a": 3, "b": 2, "c": 2, "d": 0, "e": 1}
    reports = {w: replace(report(5, (0, 6)), layout=layout) for w, layout in layouts.items()}
    reports["f"] = replace(report(3, (0, 6)), layout=2)  # of no use: too far behind
    opened = resume_point(reports, 5, None)
    assert opened.same == (2, ("b", "c"))
    assert set(opened.held) == {"a", "b", "c", "d", "e"}
    assert resume_point({"a": report(5, (0, 6))}, 5, None).same == (0, ())


ranges = st.tuples(st.integers(0, BLOCKS), st.integers(0, BLOCKS)).map(lambda r: (min(r), max(r)))
reports = st.builds(
    lambda step, held, whole, done: report(step, *held, whole=whole, done=tuple(done)),
    st.integers(4, 5),
    st.lists(ranges, max_size=3),
    st.booleans(),
    st.lists(st.integers(0, 4), unique=True),
)


@given(st.lists(reports, min_size=1, max_size=5), st.sampled_from([None, (5, record(5)), (4, record(4))]))
def test_whoever_is_counted_on_can_be_at_the_step_of_the_opening(
    given_: list[Report], stored: object
) -> None:
    named = {f"w{i}": r for i, r in enumerate(given_)}
    held = holders(given_, 5, stored)  # type: ignore[arg-type]
    if len(held) < BLOCKS:
        return
    opened = resume_point(named, 5, stored)  # type: ignore[arg-type]
    for worker, kept in opened.held.items():
        step = named[worker].step
        assert step == 5 or (step == 4 and opened.record == record(5))
        assert kept == named[worker].held
    assert {b for kept in opened.held.values() for a, z in kept for b in range(a, z)} == set(range(BLOCKS))
    assert set(opened.whole) <= {w for w, r in named.items() if r.step == 5 and r.whole}
    assert set(opened.done) == {w for w, r in named.items() if r.step == 5}
    assert opened.cursor in (cursor(5), cursor(4))
    assert opened.cursor == cursor(5) or opened.record is not None

"""The bench draws the right figures from what the processes of a run wrote down."""

import json
from pathlib import Path
from typing import Any

import pytest

from rig import analysis as a
from rig.events import Reader
from rig.report import finish, table


def commits(*rows: tuple[float, int, int], pid: int = 1) -> list[dict[str, Any]]:
    """(when, step, world) of each commit."""
    return [{"t": t, "step": step, "world": world, "pid": pid} for t, step, world in rows]


def test_a_step_takes_from_the_first_commit_before_it_to_its_own_first() -> None:
    two = [*commits((1.0, 1, 2), (2.0, 2, 2), (3.5, 3, 2)), *commits((1.1, 1, 2), (1.9, 2, 2), pid=2)]
    assert a.step_times(two) == pytest.approx([0.9, 1.6])
    assert a.step_times(two, since=2) == pytest.approx([1.6])


def test_a_gap_in_the_steps_is_no_step_time() -> None:
    assert a.step_times(commits((1.0, 1, 2), (2.0, 2, 2), (9.0, 4, 2), (9.5, 5, 2))) == pytest.approx(
        [1.0, 0.5]
    )


def test_workers_that_do_not_wait_for_each_other_are_as_fast_as_the_slowest() -> None:
    two = [*commits((1.0, 1, 2), (2.0, 2, 2)), *commits((1.0, 1, 2), (1.5, 2, 2), pid=2)]
    assert a.per_worker_step_times(two) == pytest.approx([1.0])


def test_the_survivor_went_on_at_once_and_redid_nothing() -> None:
    story = commits((1.0, 1, 2), (2.0, 2, 2), (2.7, 3, 1), (4.0, 4, 1), (5.0, 5, 2), (6.0, 6, 2))
    found = a.recovery(story, killed_at=2.3, ready_at=4.5, world=2, step_s=1.0, ahead=4)
    assert found.pause_s == found.progress_s == pytest.approx(0.4)
    assert found.full_s == pytest.approx(2.7)
    assert found.steps_redone == 0
    assert found.lost_s == pytest.approx(6.0 - 2.3 - 4.0)


def test_everybody_restarted_from_a_checkpoint_and_redid_steps() -> None:
    story = commits((1.0, 9, 2), (2.0, 10, 2), (6.0, 9, 2), (7.0, 10, 2), (8.0, 11, 2))
    found = a.recovery(story, killed_at=2.3, ready_at=7.5, world=2, step_s=1.0, ahead=1)
    assert (found.pause_s, found.progress_s) == (pytest.approx(3.7), pytest.approx(5.7))
    assert found.steps_redone == 2
    assert found.full_s == pytest.approx(5.7)


def test_full_strength_is_not_the_commit_that_was_under_way_with_the_dead_one() -> None:
    story = commits((1.0, 1, 2), (2.4, 2, 2), (4.0, 3, 1), (5.0, 4, 2))
    found = a.recovery(story, killed_at=2.3, ready_at=4.5, world=2, step_s=1.0)
    assert found.full_s == pytest.approx(2.7) and found.lost_s is None


def test_rows_that_died_with_their_worker_are_counted_and_those_done_again_are_not_twice() -> None:
    said = [{"step": step, "rows": 6} for step in (1, 1, 2, 3, 3, 3, 4)]
    assert a.rows_dropped(said, batch=12, last=3) == 6


def test_no_step_after_the_kill_is_no_recovery() -> None:
    with pytest.raises(ValueError, match="still 2"):
        a.recovery(commits((1.0, 1, 2), (2.0, 2, 2)), killed_at=2.3, ready_at=3.0, world=2, step_s=1.0)


def test_the_longest_stall_is_the_one_around_the_join_not_one_long_before() -> None:
    story = commits((0.0, 1, 1), (9.0, 2, 1), (10.0, 3, 1), (12.0, 4, 2), (13.0, 5, 2))
    assert a.longest_gap(story, start=10.5, end=12.5) == pytest.approx(2.0)
    with pytest.raises(ValueError):
        a.longest_gap(story, start=20.0, end=21.0)


def test_what_is_done_again_is_not_new() -> None:
    again = commits((1.0, 1, 2), (2.0, 2, 2), (3.0, 1, 2), (4.0, 2, 2), (5.0, 3, 2), (6.0, 4, 2))
    assert a.new_steps(again, 1.0, 6.0, step_s=1.0) == 3


def test_a_kill_that_costs_half_a_step_costs_that_wherever_the_step_begins() -> None:
    for phase in (0.0, 0.3, 0.9):
        story = commits(*((t + phase + 0.5 * (t > 9), t, 2) for t in range(1, 30)))
        step_s = a.mean_step(story, [(0.0, 9.0), (15.0, 30.0)])
        assert step_s == pytest.approx(1.0)
        assert 8.0 - a.new_steps(story, 9.2, 17.2, step_s) * step_s == pytest.approx(0.5)


def test_a_pace_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole step"):
        a.mean_step(commits((1.0, 1, 2)), [(0.0, 9.0), (10.0, 20.0)])


def test_a_checkpoint_costs_what_the_half_after_it_takes_longer_than_the_half_before_the_next() -> None:
    slow = [1.0 + 0.2 * (step % 4 in (1, 2)) for step in range(1, 13)]  # the two steps after each checkpoint
    story = commits(*((sum(slow[:n]), n, 2) for n in range(1, 13)))
    assert a.extra_per_checkpoint(story, every=4) == pytest.approx([0.4, 0.4])


def test_a_checkpoint_pauses_training_for_what_the_step_after_it_takes_longer_than_a_usual_one() -> None:
    slow = [1.0 + 0.3 * (step % 4 == 1) for step in range(1, 14)]
    story = commits(*((sum(slow[:n]), n, 2) for n in range(1, 14)))
    assert a.pause_per_checkpoint(story, every=4) == pytest.approx([0.3, 0.3])


@pytest.mark.parametrize(
    ("value", "limit", "least", "met"),
    [(1.05, 1.05, True, True), (1.04, 1.05, True, False), (0.5, 0.5, False, True), (0.51, 0.5, False, False)],
)
def test_a_target_is_met_at_its_limit_and_not_beyond(
    value: float, limit: float, least: bool, met: bool
) -> None:
    assert (a.Target("it", value, limit, least).shortfall is None) is met


def test_what_was_not_measured_falls_short(capsys: pytest.CaptureFixture[str]) -> None:
    code = finish(
        {"ratio": 1.23456789}, [a.Target("the pause", None, 0.5), a.Target("it", 1.0, 2.0)], ["busy"]
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 1 and last["ratio"] == 1.235
    assert last["falls_short"] == ["the pause was not measured (the target is at most 0.5).", "busy"]


def test_a_ratio_compares_runs_of_the_same_round() -> None:
    ours = [{"round": 0, "s": 2.0}, {"round": 1, "s": 8.0}]
    peer = [{"round": 1, "s": 4.0}, {"round": 0, "s": 2.0}]
    assert a.median_ratio(ours, peer, "s") == pytest.approx(1.5)
    assert a.median_ratio(ours, [], "s") is None
    assert a.ratio(1.0, None) is None and a.median([None, 3.0]) == 3.0


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    reader, file = Reader(tmp_path), tmp_path / "events-7.jsonl"
    file.write_text('{"t": 2, "event": "commit"}\n{"t": 1, "ev')
    assert [e["t"] for e in reader.events()] == [2]
    with file.open("a") as more:
        more.write('ent": "ready"}\n')
    assert [e["t"] for e in reader.events()] == [1, 2]
    assert [e["t"] for e in reader.events("ready")] == [1]


def test_a_table_keeps_its_columns_and_says_what_is_unknown() -> None:
    lines = table(["", "a"], [["long name", 1.23456], ["x", None]]).splitlines()
    assert [len(line) for line in lines] == [16] * 4
    assert lines[2].endswith("1.235") and lines[3].endswith("-")

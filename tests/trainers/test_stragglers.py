"""Who is told to be slow, and when."""

from __future__ import annotations

from elastrain.trainers.membership.balance import Pace
from elastrain.trainers.membership.stragglers import STEPS, Stragglers


def looks(stragglers: Stragglers, steps: int, **seconds: float) -> list[tuple[str, bool]]:
    """The changes over some steps in which everyone takes as long."""
    pace = Pace(seconds)
    return [(c.worker, c.slow) for _ in range(steps) for c in stragglers.look(pace, list(seconds))]


def test_a_worker_slower_than_half_of_the_others_is_named_once() -> None:
    stragglers = Stragglers()
    assert looks(stragglers, STEPS - 1, w0=1.0, w1=2.1, w2=1.0) == []
    assert looks(stragglers, 50, w0=1.0, w1=2.1, w2=1.0) == [("w1", True)]
    assert looks(stragglers, 50, w0=1.0, w1=1.6, w2=1.0) == [], "not yet well again"
    assert looks(stragglers, 50, w0=1.0, w1=1.4, w2=1.0) == [("w1", False)]


def test_steps_that_are_not_in_a_row_do_not_add_up() -> None:
    stragglers = Stragglers()
    for _ in range(STEPS):
        assert looks(stragglers, STEPS - 1, w0=1.0, w1=3.0) == []
        assert looks(stragglers, 1, w0=1.0, w1=1.0) == []


def test_of_two_workers_the_other_one_is_the_measure() -> None:
    assert looks(Stragglers(), STEPS, w0=3.0, w1=1.0) == [("w0", True)]


def test_one_that_is_the_fastest_now_is_told_beside_the_others() -> None:
    stragglers = Stragglers({"w1"})
    pace = Pace({"w0": 1.0, "w1": 0.9})
    [change] = [c for _ in range(STEPS) for c in stragglers.look(pace, ["w0", "w1"])]
    assert (change.slow, change.seconds, change.others) == (False, 0.9, 1.0)


def test_each_is_compared_with_the_median_of_all_others() -> None:
    """Of 1, 1, 5, 5 the median is 1, whoever asks; of 5, 5, 5, 1 the fast one makes nobody slow."""
    assert looks(Stragglers(), STEPS, a=1.0, b=1.0, c=5.0, d=5.0) == [("c", True), ("d", True)]
    assert looks(Stragglers(), STEPS, a=5.0, b=5.0, c=5.0, d=1.0) == []


def test_a_worker_that_is_not_measured_and_one_that_is_alone_are_not_slow() -> None:
    stragglers, pace = Stragglers(), Pace({"w0": 1.0})
    assert [c for _ in range(20) for c in stragglers.look(pace, ["w0", "w1"])] == []


def test_a_straggler_that_left_is_named_again_if_it_comes_back() -> None:
    stragglers = Stragglers()
    assert looks(stragglers, STEPS, w0=1.0, w1=3.0) == [("w1", True)]
    assert looks(stragglers, 1, w0=1.0, w2=1.0) == []
    assert looks(stragglers, STEPS, w0=1.0, w1=3.0) == [("w1", True)]

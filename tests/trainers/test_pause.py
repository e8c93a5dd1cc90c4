"""What is told of a pause: the time in which nobody computed."""

from __future__ import annotations

from collections.abc import Iterator

from elastrain.trainers.coordination.pause import Pause
from elastrain.trainers.membership.generation import Phase
from elastrain.trainers.membership.messages import Began, Closed


def pause(*readings: float) -> Pause:
    clock: Iterator[float] = iter(readings)
    return Pause(lambda: next(clock))


def stops(it: Pause) -> None:
    it.watch(Phase.STEADY, Closed("w1"), Phase.COLLECTING)


def computes(it: Pause) -> None:
    it.watch(Phase.FORMING, Began("w0", 5, 0), Phase.FORMING)


def test_a_pause_is_over_when_somebody_computes_though_chunks_still_change_hands() -> None:
    """A microbatch of ten seconds was told of as a pause of ten seconds."""
    it = pause(5.0, 5.08)
    stops(it)
    computes(it)
    computes(it)
    assert it.end() == 80.0


def test_where_nothing_is_left_to_compute_it_is_over_when_the_generation_is_formed() -> None:
    it = pause(5.0, 5.25)
    stops(it)
    assert it.end() == 250.0


def test_who_computed_in_a_generation_that_broke_too_did_not_end_the_next_pause() -> None:
    it = pause(5.0, 5.1, 6.0, 6.5)
    stops(it)
    computes(it)
    stops(it)
    computes(it)
    assert it.end() == 500.0


def test_the_first_generation_of_all_pauses_nobody() -> None:
    it = pause(1.0, 2.0)
    computes(it)
    assert it.end() == 0.0

"""The demo's figures are measured: a lost step, a redone step and a slow pause would all show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from elastrain.api.cli.demo_record import Record
from elastrain.client import Update

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(ms: float) -> str:
    return (START + timedelta(milliseconds=ms)).isoformat().replace("+00:00", "Z")


def step(number: int, ms: float, **values: Any) -> Update:
    return Update("metric", 0, {"step": number, "at": at(ms), "values": {"loss": 1.0, **values}})


def formed(ms: float, *workers: str) -> Update:
    data = {"type": "generation.formed", "at": at(ms), "data": {"workers": list(workers)}}
    return Update("event", 0, data)


def record(*updates: Update) -> Record:
    told = Record()
    for update in updates:
        told.take(update)
    return told


def test_the_pause_ends_with_the_first_step_of_a_generation_without_the_dead_worker() -> None:
    told = record(
        formed(0, "w0", "w1"),
        step(1, 100),
        step(2, 201),  # all but done when the kill came: it does not end the pause
        formed(240, "w0"),
        step(3, 275),
        step(4, 300),
    )
    killed_at = START + timedelta(milliseconds=200)
    assert told.resumed_without("w1", killed_at) == (3, START + timedelta(milliseconds=275))
    assert told.pause_ms("w1", killed_at) == 75.0
    assert told.lost(4) == 0


def test_a_step_that_was_trained_again_counts_as_lost() -> None:
    assert record(step(1, 0), step(2, 10), step(2, 500), step(3, 600)).lost(3) == 1


def test_a_step_that_never_came_counts_as_lost() -> None:
    assert record(step(1, 0), step(3, 600)).lost(4) == 2


def test_a_job_that_never_went_on_has_no_pause() -> None:
    told = record(formed(0, "w0", "w1"), step(1, 100))
    assert told.pause_ms("w1", START + timedelta(milliseconds=150)) is None


def test_an_evaluation_is_not_a_second_acceptance_of_its_step() -> None:
    told = record(step(1, 0))
    told.take(Update("metric", 0, {"step": 1, "at": at(5), "values": {"val_accuracy": 0.98}}))
    assert told.lost(1) == 0 and told.values["val_accuracy"] == 0.98

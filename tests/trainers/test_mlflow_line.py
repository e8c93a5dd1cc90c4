"""A job's points go to MLflow while it trains; whatever becomes of that server, the job does not notice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastrain.trainers.coordination.attempt import Outcome
from elastrain.trainers.reporting import mlflow_line
from elastrain.trainers.reporting.claim import Claim
from elastrain.trainers.reporting.facts import event, now
from elastrain.trainers.reporting.mlflow_line import Line, open_line
from elastrain.trainers.reporting.mlflow_run import URI
from mlflow_server import Mlflow

SPEC = {"name": "digits", "project": "vision", "seed": 7, "optimizer": {"name": "adam"}}
SUCCEEDED = Outcome("succeeded", 3)
LOST = Outcome("failed", 3, "infrastructure", "a node was lost")

Open = Callable[..., Line]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens lines of one job; what a test leaves open is closed."""
    monkeypatch.setattr(mlflow_line, "EVERY_S", 0.01)
    monkeypatch.setattr(mlflow_line, "AGAIN_S", 0.01)
    lines: list[Line] = []

    def opened(env: dict[str, str], ours: dict[str, str] | None = None) -> Line:
        granted = Claim("t", SPEC, "memory://", {}, env=ours or {})
        lines.append(open_line("j1", granted, env))
        return lines[-1]

    yield opened
    for line in lines:
        line.close(LOST)


def point(step: int, **values: float) -> dict[str, Any]:
    return {"kind": "metric", "at": now(), "step": step, "epoch_no": 0, "values": values or {"loss": 1.0}}


def eventually(look: Callable[[], Any]) -> None:
    while not look():  # the test's own timeout ends it
        time.sleep(0.005)


def test_points_are_there_while_the_job_trains_and_its_end_is_told(opened: Open, mlflow: Mlflow) -> None:
    line = opened({URI: mlflow.url, "MLFLOW_TRACKING_TOKEN": "secret"})
    line.take(event("job.started", "not a point"))
    line.take(point(1, loss=0.5, odd=float("nan")))
    eventually(lambda: mlflow.runs and mlflow.steps("loss") == [1])
    assert mlflow.run["status"] == "RUNNING" and mlflow.run["params"]["optimizer.name"] == "adam"
    assert mlflow.experiments == {"vision": "1"}
    line.take(point(2))
    line.close(SUCCEEDED)
    assert mlflow.steps("loss") == [1, 2] and mlflow.run["status"] == "FINISHED"
    assert [m["value"] for m in mlflow.run["metrics"] if m["key"] == "odd"] == ["NaN"]
    assert {header for _, header in mlflow.asked} == {"Bearer secret"}


def test_the_next_attempt_goes_on_in_the_same_run(opened: Open, mlflow: Mlflow) -> None:
    first = opened({URI: mlflow.url})
    first.take(point(1))
    first.close(LOST)
    assert mlflow.run["status"] == "RUNNING", "the job is not over"
    second = opened({URI: mlflow.url})
    second.take(point(2))
    second.close(Outcome("cancelled", 2))
    assert mlflow.steps("loss") == [1, 2] and mlflow.run["status"] == "KILLED"
    third = opened({URI: mlflow.url})
    third.close(Outcome("cancelled", 2, None, "another attempt has taken over"))
    assert mlflow.run["status"] == "RUNNING", "that one goes on"


def test_a_server_that_was_away_for_a_while_lacks_nothing(opened: Open, mlflow: Mlflow) -> None:
    line = opened({URI: mlflow.url})
    line.take(point(1))
    eventually(lambda: mlflow.runs and mlflow.steps("loss") == [1])
    mlflow.away = True
    asked = len(mlflow.asked)
    line.take(point(2))
    line.take(point(3))
    eventually(lambda: len(mlflow.asked) > asked + 2)
    mlflow.away = False
    eventually(lambda: mlflow.steps("loss") == [1, 2, 3])


def test_a_server_that_never_answers_holds_up_neither_the_job_nor_its_end(
    opened: Open, mlflow: Mlflow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow.held = threading.Event()
    monkeypatch.setattr(mlflow_line, "CLOSE_S", 0.01)
    monkeypatch.setattr(mlflow_line, "KEPT", 3)
    line = opened({URI: mlflow.url})
    for step in range(1, 6):
        line.take(point(step))
    line.close(SUCCEEDED)
    assert "MLflow lacks 5" in caplog.text
    mlflow.held.set()


def test_of_what_waits_too_long_the_newest_is_kept(
    opened: Open, mlflow: Mlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow.held = threading.Event()
    monkeypatch.setattr(mlflow_line, "KEPT", 3)
    line = opened({URI: mlflow.url})
    for step in range(1, 6):
        line.take(point(step))
    mlflow.held.set()
    eventually(lambda: mlflow.runs and mlflow.steps("loss") == [3, 4, 5])


def test_a_value_that_the_server_refuses_costs_its_batch_and_no_more(
    opened: Open, mlflow: Mlflow, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow.refuses = "odd@name"
    line = opened({URI: mlflow.url})
    line.take(point(1, **{"odd@name": 1.0}))
    eventually(lambda: "1 values are left out" in caplog.text)
    line.take(point(2))
    eventually(lambda: mlflow.steps("loss") == [2])


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "databricks"])
def test_an_address_that_is_no_server_is_said_once_and_points_are_let_go(
    opened: Open, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    line = opened({URI: uri})
    eventually(lambda: f"{URI}={uri!r}" in caplog.text)
    for step in range(3):
        line.take(point(step))
    line.close(SUCCEEDED)
    assert caplog.text.count(URI) == 1


def test_a_jobs_own_server_wins_and_never_gets_the_credentials_for_another(
    opened: Open, mlflow: Mlflow
) -> None:
    nodes = {URI: "http://127.0.0.1:9", "MLFLOW_TRACKING_TOKEN": "of the nodes"}
    line = opened(nodes, ours={URI: mlflow.url})
    line.take(point(1))
    line.close(SUCCEEDED)
    assert mlflow.run["status"] == "FINISHED"
    assert {header for _, header in mlflow.asked} == {None}


def test_without_an_address_nothing_is_opened(opened: Open) -> None:
    threads = threading.active_count()
    line = opened({})
    line.take(point(1))
    line.close(SUCCEEDED)
    assert threading.active_count() == threads

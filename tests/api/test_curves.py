"""`elastrain tensorboard`: event files that TensorBoard reads as they are meant, and one run on an MLflow."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from elastrain.api.cli.app import app
from elastrain.api.cli.curves import Point, ordered
from mlflow_server import Mlflow
from serving import Life, Live

Run = Callable[..., Result]


@pytest.fixture
def run(live: Live, token: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("ELASTRAIN_URL", live.url)
    monkeypatch.setenv("ELASTRAIN_TOKEN", token)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result

    return run


def events(folder: Path) -> Iterator[Any]:
    """The records of the only event file: length, its checksum, data, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events.out.tfevents.*")
    data, at = file.read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        yield Event.FromString(data[at + 12 : at + 12 + size])
        at += 12 + size + 4


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """{tag: {step: value}} as TensorBoard shows it: what a restart overtakes is dropped."""
    found: dict[str, dict[int, float]] = {}
    for event in events(folder):
        if event.HasField("session_log"):
            found = {t: {s: v for s, v in c.items() if s < event.step} for t, c in found.items()}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_a_jobs_curves_are_one_event_file_however_often_it_is_asked_for(run: Run, life: Life) -> None:
    life.runs()
    for step in (1, 2, 3):
        life.step(step, loss=1.0 / step, lr=0.001)
    life.step(3, val_accuracy=0.5)
    life.step(4, loss=float("nan"), lr=0.001)
    for _ in range(2):
        result = run("tensorboard", life.job)
    folder = Path("runs") / f"digits-{life.job}"
    assert f"4 points of job {life.job} (running)" in result.stderr and str(folder) in result.stderr
    assert "tensorboard --logdir runs" in result.stderr
    found = scalars(folder)
    assert found["loss"][2] == 0.5 and found["loss"][4] != found["loss"][4]
    assert found["val_accuracy"] == {3: 0.5}
    texts = [v for event in events(folder) for v in event.summary.value if v.tag.startswith("spec")]
    assert "optimizer:" in texts[0].tensor.string_val[0].decode()


def test_a_job_that_is_followed_is_written_to_its_end(run: Run, life: Life) -> None:
    life.runs()
    life.step(1, loss=1.0)
    threading.Timer(0.3, lambda: (life.step(2, loss=0.5), life.succeeds())).start()
    result = run("tensorboard", life.job, "--follow", "--logdir", "curves")
    assert "(succeeded)" in result.stderr
    assert scalars(Path("curves") / f"digits-{life.job}")["loss"] == {1: 1.0, 2: 0.5}


class Notes:
    def __init__(self) -> None:
        self.back: list[int] = []

    def point(self, step: int, at: float, values: Any) -> None: ...

    def back_to(self, step: int) -> None:
        self.back.append(step)

    def close(self, status: str) -> None: ...


def test_steps_that_are_computed_again_take_the_place_of_the_old_ones() -> None:
    notes = Notes()
    told = [(1, (1, 0)), (2, (1, 0)), (3, (1, 0)), (2, (1, 1)), (3, (1, 1)), (3, (1, 0)), (4, (2, 0))]
    points = [Point(step, 0.0, era, {}) for step, era in told]
    assert [(p.step, p.era) for p in ordered(iter(points), [notes])] == [*told[:5], told[6]]
    assert notes.back == [2]


def test_without_tensorboardx_it_says_what_to_install(
    run: Run, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    assert "pip install 'elastrain[tensorboard]'" in run("tensorboard", life.job, code=2).stderr


def test_with_an_mlflow_set_the_job_is_one_run_there(
    run: Run, life: Life, mlflow: Mlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.url)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "the-token")
    life.runs()
    life.step(1, loss=1.0, odd=float("inf"))
    life.step(2, loss=0.5)
    run("tensorboard", life.job)
    life.succeeds()
    run("tensorboard", life.job)
    assert mlflow.experiments == {"default": "1"}
    ((_, found),) = mlflow.runs.items()
    assert found["status"] == "FINISHED"
    assert found["params"]["optimizer.name"] == "adam" and found["params"]["batch.size"] == "64"
    points = {(m["key"], m["step"], m["value"]) for m in found["metrics"]}
    assert points == {("loss", 1, 1.0), ("odd", 1, "Infinity"), ("loss", 2, 0.5)}
    stamps = [m["timestamp"] for m in found["metrics"] if m["step"] == 1 and m["key"] == "loss"]
    assert len(set(stamps)) == 1, "the same point has the same time, so that it is the same to MLflow"
    assert {header for _, header in mlflow.asked} == {"Bearer the-token"}


def test_an_mlflow_that_is_no_server_or_not_there_is_named(
    run: Run, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///tmp/mlruns")
    assert "MLFLOW_TRACKING_URI='file:///tmp/mlruns'" in run("tensorboard", life.job, code=2).stderr
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "MLflow server does not answer" in run("tensorboard", life.job, code=7).stderr

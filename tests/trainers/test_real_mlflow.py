"""The same line against MLflow's own server, installed for this run: what the fake says of it is so."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from databases import free_port
from elastrain.trainers.coordination.attempt import Outcome
from elastrain.trainers.reporting.claim import Claim
from elastrain.trainers.reporting.facts import now
from elastrain.trainers.reporting.mlflow_line import open_line
from elastrain.trainers.reporting.mlflow_run import URI
from elastrain.trainers.spec import parse_spec

pytestmark = [pytest.mark.stores, pytest.mark.timeout(600)]

ABOUT = {"name": "digits", "project": "vision", "task": "tasks:T"}
SPEC = parse_spec({**ABOUT, "batch": {"size": 8, "microbatch": 2}, "epochs": 1}).model_dump(mode="json")


@pytest.fixture(scope="module")
def program() -> Iterator[str]:
    """The machine's own, or one in an environment made here: it brings some eighty packages, which are no
    business of this project's. Skips the test where it cannot be had, and says why."""
    if found := os.environ.get("MLFLOW_PROGRAM") or shutil.which("mlflow"):
        yield found
        return
    with tempfile.TemporaryDirectory(prefix="elastrain-mlflow-") as folder:
        pip = [f"{folder}/bin/pip", "install", "--quiet", "--disable-pip-version-check", "mlflow"]
        for command in ([sys.executable, "-m", "venv", folder], pip):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no MLflow is here (MLFLOW_PROGRAM), nor to be had: {done.stderr[-300:]}")
        yield f"{folder}/bin/mlflow"


@pytest.fixture(scope="module")
def server(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    folder, port = tmp_path_factory.mktemp("mlflow"), free_port()
    url = f"http://127.0.0.1:{port}"
    command = [program, "server", "--host=127.0.0.1", f"--port={port}", "--workers=1"]
    command += [f"--backend-store-uri=sqlite:///{folder}/mlflow.db", f"--artifacts-destination={folder}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        while not _answers(url):  # the test's own timeout ends it
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).is_success
    except httpx.HTTPError:
        return False


def ask(method: str, url: str, path: str, **request: Any) -> Any:
    reply = httpx.request(method, f"{url}/api/2.0/mlflow/{path}", **request, trust_env=False, timeout=30)
    return reply.raise_for_status().json()


def only_run(url: str) -> Any:
    """The one that the project's experiment has."""
    found = ask("GET", url, "experiments/get-by-name", params={"experiment_name": "vision"})
    wanted = {"experiment_ids": [found["experiment"]["experiment_id"]]}
    (run,) = ask("POST", url, "runs/search", json=wanted)["runs"]
    return run


def train(url: str, steps: range, outcome: Outcome) -> None:
    """An attempt of the job, as its driver tells of it."""
    line = open_line("j-real", Claim("t", SPEC, "memory://", {}, env={}), {URI: url})
    for step in steps:
        values = {"loss": 1.0 / step, "odd": float("nan")}
        line.take({"kind": "metric", "at": now(), "step": step, "epoch_no": 0, "values": values})
    line.close(outcome)


def test_a_real_mlflow_has_one_finished_run_of_a_job_of_two_attempts_with_every_step(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastrain.trainers.reporting.mlflow_line.CLOSE_S", 60.0)  # it is slow at first
    train(server, range(1, 4), Outcome("failed", 3, "infrastructure", "a node was lost"))
    train(server, range(4, 1504), Outcome("succeeded", 1503))
    run = only_run(server)
    assert run["info"]["status"] == "FINISHED" and run["info"]["run_name"] == "digits-j-real"
    params = {item["key"]: item["value"] for item in run["data"]["params"]}
    assert params["optimizer.name"] == "adam" and params["batch.size"] == "8"
    asked = {"run_id": run["info"]["run_id"], "metric_key": "loss", "max_results": 2000}
    history = ask("GET", server, "metrics/get-history", params=asked)["metrics"]
    assert sorted(int(point["step"]) for point in history) == list(range(1, 1504))


def test_a_job_that_its_user_broke_or_cancelled_is_failed_or_killed_on_a_real_mlflow(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastrain.trainers.reporting.mlflow_line.CLOSE_S", 60.0)
    for outcome, status in (
        (Outcome("failed", 1, "user", "ValueError"), "FAILED"),
        (Outcome("cancelled", 1), "KILLED"),
    ):
        train(server, range(1, 2), outcome)
        assert only_run(server)["info"]["status"] == status

"""Ray's own list of Train runs, asked over HTTP: a run is there, ends as it ended, and with its driver."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from elastrain.service.ray_jobs import Launch, RayJobs
from elastrain.service.up_ray import RayHead

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

DRIVER = Path(__file__).with_name("train_page_driver.py")
TAG = "test/j-page/1"
Json = dict[str, Any]


def runs(head: RayHead) -> dict[str, Json]:
    """name -> run, as Ray's dashboard says."""
    with httpx.Client(trust_env=False, timeout=30) as http:
        token = os.environ["RAY_AUTH_TOKEN_PATH"]
        reply = http.get(
            f"{head.address}/api/train/v2/runs/v1",
            headers={"Authorization": f"Bearer {Path(token).read_text().strip()}"},
        )
    if "Train state data is not available" in reply.text:
        return {}
    return {run["name"]: run for run in reply.raise_for_status().json()["train_runs"]}


def eventually(look: Callable[[], Any]) -> Any:
    while not (found := look()):  # the test's own timeout ends it
        time.sleep(0.5)
    return found


def tagged() -> list[str]:
    """Commands of processes that say to be of the attempt."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ELASTRAIN_ATTEMPT") == TAG:
                found.append(" ".join(process.cmdline()))
    return found


def test_an_attempt_is_on_rays_list_of_train_runs_and_ends_there_as_it_ended_or_with_its_driver(
    ray_head: RayHead, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    with closing(RayJobs(ray_head.address)) as ray_jobs:
        for name, file in (("page-failed", end), ("page-killed", tmp_path / "never")):
            command = f"{sys.executable} {DRIVER} {name} {file}"
            ray_jobs.submit(Launch(name, command, {"ELASTRAIN_ATTEMPT": TAG}, {}))

        def listed(name: str, status: str) -> Json | None:
            run = runs(ray_head).get(f"digits-{name}-1")
            return run if run is not None and run["status"] == status and run["attempts"] else None

        failing = eventually(lambda: listed("page-failed", "RUNNING"))
        killed = eventually(lambda: listed("page-killed", "RUNNING"))
        assert failing["job_details"]["submission_id"] == "page-failed"
        assert failing["framework_versions"]["ray"] == ray_jobs.version()
        (attempt,) = killed["attempts"]
        (worker,) = attempt["workers"]
        assert (attempt["status"], worker["world_rank"], worker["status"]) == ("RUNNING", 0, "ALIVE")
        (node,) = (
            node for node in ray_jobs.nodes() if node.alive
        )  # Ray lists those as well that were here once
        assert worker["node_id"] == node.id and worker["resources"]["resources"] == {"CPU": 1.0}
        of_ray = [command for command in tagged() if command.startswith("ray::")]
        assert not [c for c in of_ray if "Scribe" in c or "TrainStateActor" in c], "they outlive the attempt"
        assert of_ray, "while its own actors carry its tag"

        os.kill(worker["pid"], signal.SIGKILL)
        eventually(lambda: listed("page-killed", "ABORTED"))
        end.touch()
        failed = eventually(lambda: listed("page-failed", "ERRORED"))
        assert failed["status_detail"] == "ValueError: no such layer"
        assert failed["attempts"][0]["status"] == "ERRORED" and failed["end_time_ns"]

"""Parameter servers on a real Ray: actors with a part of a core, killed by process and with their actor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastrain.trainers.coordination.attempt import Attempt
from elastrain.trainers.launching.launcher import Launcher
from elastrain.trainers.launching.local_launcher import LocalLauncher
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import open_storage

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]

JOB = f"j-{secrets.token_hex(5)}"
TAG = f"test/{JOB}/1"
SPEC: dict[str, Any] = {
    "name": "served",
    "task": "elastrain.trainers.tasks.digits:Digits",
    "task_args": {"channels": 8, "hidden": 32, "dropout": 0.2, "batch_norm": True},
    "batch": {"size": 256, "microbatch": 32},
    "steps": 200,
    "workers": {"min": 1, "max": 1},
    "checkpoint": {"every_steps": None},
    "resources": {"cpu": 1},
}


class Told:
    """One attempt, its facts, and what is done to it."""

    def __init__(self, folder: Path, launcher: Launcher, **fields: Any) -> None:
        self.facts: list[dict[str, Any]] = []
        self.kills = {20: 0, 60: 1} if fields else {}  # step -> how many generations above the process
        self.attempt = Attempt(
            spec=parse_spec({**SPEC, **fields}),
            job=JOB,
            attempt=1,
            storage=open_storage((folder / "objects").as_uri()),
            launcher=launcher,
            sink=self._take,
        )

    def run(self) -> str:
        outcome = asyncio.run(self.attempt.run())
        assert outcome.outcome == "succeeded", outcome
        newest = self.attempt.checkpoints.newest()
        assert newest is not None
        return str(newest[1]["state_digest"])

    def _take(self, fact: dict[str, Any]) -> None:
        self.facts.append(fact)
        if fact["kind"] == "event":
            print(fact["at"], fact["message"], flush=True)  # for the post-mortem
        if fact["kind"] == "metric" and (above := self.kills.get(fact["step"])) is not None:
            whole = len(self.attempt.machine.generation.keepers) == 2
            if not whole:  # a server that was killed is not replaced yet
                self.kills[fact["step"] + 10] = above
                return
            process = server(self.attempt.machine.members[0])
            os.kill(process.ppid() if above else process.pid, signal.SIGKILL)

    def events(self, type_: str) -> list[dict[str, Any]]:
        return [f["data"] for f in self.facts if f["kind"] == "event" and f["type"] == type_]


def server(name: str) -> psutil.Process:
    """Its process on this machine."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            ours = "elastrain.trainers.launching.ray_worker" in line and line[4] == name
            if ours and process.environ().get("ELASTRAIN_ATTEMPT") == TAG:
                return process
    raise AssertionError(f"there is no process of {name}")


def test_servers_are_actors_and_one_that_is_killed_is_recovered_from_its_buddy(
    connected: None, tmp_path: Path
) -> None:
    import ray
    from elastrain.trainers.launching.ray_launcher import RayLauncher

    launcher = RayLauncher(
        JOB,
        1,
        tag=TAG,
        resources={"CPU": 1},
        labels={},
        storage_url=f"file://{tmp_path}/objects",
        storage_options={},
        said=lambda fact: None,
    )
    before = ray.cluster_resources()["CPU"]
    told = Told(tmp_path, launcher, strategy={"name": "parameter_server", "servers": 2})
    digest = told.run()
    lost = [data["worker"] for data in told.events("worker.lost")]
    assert len(lost) == 2 and all(name.startswith("s") for name in lost), lost
    assert not told.events("rollback")
    assert ray.cluster_resources()["CPU"] == before
    (tmp_path / "alone").mkdir()
    alone = Told(tmp_path / "alone", LocalLauncher(tmp_path / "alone"))
    assert digest == alone.run()

"""`up` and `down`: one HOME, one service; ctrl-C; what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from e2e.house import DIGITS, STEPS, House, Houses, Watched, digests, eventually
from elastrain.client import Client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Submit = Callable[..., Watched]


def test_a_second_up_on_one_home_says_where_the_first_one_is_and_exits_5(house: House) -> None:
    second = house.cli("up")
    assert second.returncode == 5
    assert json.loads((house.home / "server.json").read_text())["url"] in second.stdout + second.stderr


def test_two_homes_on_one_machine_never_meet_and_down_ends_what_a_kill_left(
    house: House, tmp_path: Path
) -> None:
    other = House.start(tmp_path / "other").ready()
    try:
        assert other.client.http.url != house.client.http.url
        waiting = other.client.submit(DIGITS, overrides=["workers={min: 2, max: 2}", "resources.cpu=1000"])
        assert [job.id for job in other.client.jobs()] == [waiting.id]
        assert waiting.id not in [job.id for job in house.client.jobs()]
        other.kill()
        assert other.processes(), "Ray should outlive the service"
        assert other.cli("down").returncode == 0
        assert other.processes() == []
        assert house.client.version()  # the neighbour did not notice
    finally:
        other.server.process.kill()
        other.cli("down")


def test_ctrl_c_brings_a_job_home_and_the_next_up_trains_it_to_the_same_end(
    houses: Houses, submit: Submit, undisturbed: dict[str, object]
) -> None:
    run = submit().at_step(70)
    house = houses.now
    before = house.processes()
    house.server.process.send_signal(signal.SIGINT)
    assert house.server.process.wait(60) == 0, house.server.said
    assert [process for process in before if _runs(process)] == []
    assert not (house.home / "ray.json").exists()
    job = run.ended() if houses.now else run.job  # `now` starts the next `up`
    assert job.status == "succeeded", job.data["message"]
    restored = run.record.of_type("checkpoint.restored")
    assert restored[0]["data"]["step"] >= 70, "ctrl-C should have left a checkpoint of the last step"
    assert job.data["counters"]["retries_left"] == job.data["spec"]["retries"], "it cost a retry"
    assert run.record.lost(STEPS) == 0
    assert digests(job) == undisturbed


def test_without_ray_readyz_names_it_and_the_job_waits_with_that_reason(tmp_path: Path) -> None:
    """A service whose Ray is somewhere else, and away."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "ELASTRAIN_HOME": str(tmp_path),
        "ELASTRAIN_RAY_ADDRESS": "http://127.0.0.1:9",  # nobody listens there
    }
    command = [sys.executable, "-m", "elastrain.api.serve", "--port", str(port)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as service:
        try:
            url = f"http://127.0.0.1:{port}"
            ready = eventually(lambda: reply(f"{url}/readyz"), 30)
            assert ready.status_code == 503
            checks = ready.json()["checks"]
            assert [name for name, check in checks.items() if not check["ok"]] == ["ray"]
            assert "refused" in checks["ray"]["detail"]
            job = Client(url, (tmp_path / "token").read_text().strip()).submit(DIGITS)
            eventually(lambda: job.refresh().data["reason"] == "ray_unreachable", 20)
            assert job.status == "queued"
        finally:
            service.terminate()


def reply(url: str) -> httpx.Response | None:
    """What answers, if anybody does yet."""
    try:
        return httpx.get(url, trust_env=False)
    except httpx.TransportError:
        return None


def _runs(process: psutil.Process) -> bool:
    """Has it not ended? One that has may still wait for somebody to take note of it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

"""Groups on a real Ray: killed, refused, stopped half-way; what is known of their ends, and what is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launched import JOB, TAG, Coordinator, Launched, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("connected"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def launched(
    connected: None, tmp_path_factory: pytest.TempPathFactory, coordinator: Coordinator
) -> Iterator[Launched]:
    """One launcher for all tests, as an attempt has one; each test has groups of its own."""
    from elastrain.trainers.launching import ray_launcher

    ray_launcher.KNOBS["RAY_TRAIN_ENABLE_STATE_TRACKING"] = "1"  # else Ray Train tells nobody of its runs
    launched = Launched(tmp_path_factory.mktemp("store"), coordinator)
    yield launched
    launched.launcher.close()
    assert workers() == {}
    told = sum(fact["bytes"] for fact in launched.facts)
    assert told == sum(entry.size for entry in launched.storage.list(f"jobs/{JOB}/logs"))


def tagged(what: str) -> list[psutil.Process]:
    """The job's processes on this machine with such a command."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if what in " ".join(process.cmdline()) and process.environ().items() >= TAG.items():
                found.append(process)
    return found


def workers() -> dict[str, int]:
    """The worker processes of the job on this machine: {id: pid}."""
    return {
        process.cmdline()[4]: process.pid for process in tagged("elastrain.trainers.launching.ray_worker")
    }


def test_a_killed_worker_ends_its_group_alone_and_the_signal_is_named(launched: Launched) -> None:
    launched.start("g1", "w1")
    launched.start("g2", "w2", "w3")
    wait_for(lambda: {*launched.coordinator.connections} >= {"w1", "w2", "w3"})
    pids = workers()
    os.kill(pids["w2"], signal.SIGKILL)
    causes = launched.wait_ended("g2", 15)
    assert causes == {"w2": "signal 9 (SIGKILL)", "w3": "ended with its group"}
    assert workers() == {"w1": pids["w1"]}
    os.kill(pids["w1"], signal.SIGTERM)
    assert launched.wait_ended("g1", 15) == {"w1": "signal 15 (SIGTERM)"}


def test_a_worker_that_fails_says_its_exit_code_and_its_last_words_are_kept(launched: Launched) -> None:
    launched.start("g3", "w4", url="ws://127.0.0.1:1")  # nobody listens there
    assert launched.wait_ended("g3") == {"w4": "exit code 1"}
    wait_for(lambda: b"ConnectionRefusedError" in launched.log("w4"), 10)


def test_a_dismissed_worker_ends_well(launched: Launched) -> None:
    launched.start("g4", "w5")
    wait_for(lambda: "w5" in launched.coordinator.connections)
    launched.coordinator.dismiss("w5")
    assert launched.wait_ended("g4") == {"w5": "exit code 0"}


def test_a_group_that_is_stopped_while_it_starts_never_begins(launched: Launched) -> None:
    launched.start("g5", "w6")
    launched.launcher.stop("g5", kill=False)
    assert launched.wait_ended("g5") == {"w6": "not started"}
    assert "w6" not in launched.coordinator.connections


def test_a_frozen_worker_can_be_ended(launched: Launched) -> None:
    launched.start("g6", "w7")
    wait_for(lambda: "w7" in launched.coordinator.connections)
    os.kill(workers()["w7"], signal.SIGSTOP)
    launched.launcher.stop("g6", kill=True)
    assert launched.wait_ended("g6", 15) == {"w7": "signal 9 (SIGKILL)"}


def test_a_worker_does_not_outlive_the_ray_process_that_holds_its_resources(launched: Launched) -> None:
    launched.start("g7", "w8")
    wait_for(lambda: "w8" in launched.coordinator.connections)
    pid = workers()["w8"]
    parent = psutil.Process(pid).parent()
    assert parent is not None
    parent.kill()
    cause = launched.wait_ended("g7", 30)["w8"]
    assert cause.startswith("its process vanished")
    assert workers() == {}


def test_sigterm_to_the_ray_process_reaches_the_worker(launched: Launched) -> None:
    launched.start("g11", "w12")
    wait_for(lambda: "w12" in launched.coordinator.connections)
    parent = psutil.Process(workers()["w12"]).parent()
    assert parent is not None
    time.sleep(1.0)  # two polls of Ray Train, in which the handler is installed
    parent.terminate()
    # the worker was not warm: SIGTERM ends it, and its parent lives to tell
    assert launched.wait_ended("g11", 15) == {"w12": "signal 15 (SIGTERM)"}


def test_an_agent_that_is_killed_leaves_nothing_and_the_next_group_gets_a_new_one(launched: Launched) -> None:
    launched.start("g8", "w9")
    wait_for(lambda: "w9" in launched.coordinator.connections)
    (agent,) = tagged("ray::Agent")
    agent.kill()
    assert "agent of its node was lost" in launched.wait_ended("g8", 60)["w9"]
    assert workers() == {}
    launched.start("g9", "w10")
    wait_for(lambda: "w10" in launched.coordinator.connections)


def test_a_group_that_no_node_can_hold_says_what_it_needs(
    tmp_path: Path, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastrain.trainers.launching import ray_launcher

    monkeypatch.setattr(ray_launcher, "START_TIMEOUT_S", 1.0)
    launched = Launched(tmp_path, coordinator, cpu=64)
    launched.start("g1", "w1")
    assert "no node has room for CPU 64" in launched.wait_ended("g1", 10)["w1"]
    launched.launcher.close()


def test_the_key_of_the_attempt_and_what_workers_are_given_in_secret_are_nowhere_in_ray(
    launched: Launched, ray_head: Any
) -> None:
    import httpx

    launched.start("g10", "w11")
    wait_for(lambda: "w11" in launched.coordinator.connections)
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text().strip()
    with httpx.Client(
        base_url=ray_head.address, headers={"Authorization": f"Bearer {token}"}, trust_env=False
    ) as http:
        lists = ("actors", "tasks", "workers", "nodes", "objects", "runtime_envs", "placement_groups")
        more = ("/api/jobs/", "/api/train/v2/runs/v1")
        for path in (*more, *(f"/api/v0/{what}?detail=1&limit=10000" for what in lists)):
            shown = http.get(path, timeout=60).text
            assert "the-key" not in shown and "the-canary" not in shown, path
    logs = Path(json.loads((ray_head.log_file.parent.parent / "ray.json").read_text())["temp_dir"])
    for file in logs.glob("session_*/logs/**/*"):
        text = file.read_bytes() if file.is_file() else b""
        assert b"the-key" not in text and b"the-canary" not in text, file

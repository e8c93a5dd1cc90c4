"""Groups on a real Ray: killed, refused, stopped half-way; what is known of their ends, and what is left."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from elastrain.trainers.launcher import GroupEnded, GroupStart, WorkerStart
from elastrain.trainers.storage import open_storage

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("connected"), pytest.mark.timeout(180)]

JOB = f"j-{secrets.token_hex(5)}"  # others' jobs may run on this machine
TAG = {"ELASTRAIN_ATTEMPT": f"{JOB}/1"}


class Coordinator:
    """Listens for workers, knows their pids from the system, and tells them nothing: they wait."""

    def __init__(self) -> None:
        self.connections: dict[str, ServerConnection] = {}
        self.server: Server = serve(self._accept, "127.0.0.1", 0, process_request=None)
        self.url = f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}"

    def _accept(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.connections[connection.request.path.partition("worker=")[2]] = connection
        with contextlib.suppress(ConnectionClosed):  # killed
            while True:
                connection.recv()

    def dismiss(self, worker: str) -> None:
        self.connections[worker].close()


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    import threading

    coordinator = Coordinator()
    thread = threading.Thread(target=coordinator.server.serve_forever)
    thread.start()
    yield coordinator
    coordinator.server.shutdown()
    thread.join()


class Launched:
    def __init__(self, store: Path, coordinator: Coordinator, cpu: float = 0.5) -> None:
        from elastrain.trainers.ray_launcher import RayLauncher

        self.coordinator = coordinator
        self.facts: list[dict[str, Any]] = []
        self.ended: list[GroupEnded] = []
        self.storage = open_storage(f"file://{store}")
        self.launcher = RayLauncher(
            JOB,
            1,
            resources={"CPU": cpu},
            labels={},
            storage_url=f"file://{store}",
            storage_options={},
            said=self.facts.append,
        )

    def start(self, group: str, *workers: str, url: str | None = None) -> None:
        address = url or self.coordinator.url
        starts = tuple(WorkerStart(w, group, address, "the-key", JOB, 1, 0.5) for w in workers)
        self.launcher.start(GroupStart(group, starts))

    def wait_ended(self, group: str, timeout_s: float = 60) -> dict[str, str]:
        def ended() -> GroupEnded | None:
            self.ended += self.launcher.poll()
            return next((e for e in self.ended if e.group == group), None)

        return dict(wait_for(ended, timeout_s).causes)

    def log(self, worker: str) -> bytes:
        return b"".join(
            self.storage.get(entry.key) for entry in self.storage.list(f"jobs/{JOB}/logs/1/{worker}")
        )


@pytest.fixture
def launched(tmp_path: Path, coordinator: Coordinator) -> Iterator[Launched]:
    launched = Launched(tmp_path, coordinator)
    yield launched
    launched.launcher.close()
    assert workers() == {}


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
    return {process.cmdline()[4]: process.pid for process in tagged("elastrain.trainers.ray_worker")}


def wait_for(look: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain"
        time.sleep(0.05)
    return found


def test_a_killed_worker_ends_its_group_alone_and_the_signal_is_named(launched: Launched) -> None:
    launched.start("g1", "w1")
    launched.start("g2", "w2", "w3")
    wait_for(lambda: len(launched.coordinator.connections) == 3)
    pids = workers()
    os.kill(pids["w2"], signal.SIGKILL)
    causes = launched.wait_ended("g2", 15)
    assert causes == {"w2": "signal 9 (SIGKILL)", "w3": "ended with its group"}
    assert workers() == {"w1": pids["w1"]}
    os.kill(pids["w1"], signal.SIGTERM)
    assert launched.wait_ended("g1", 15) == {"w1": "signal 15 (SIGTERM)"}


def test_a_worker_that_fails_says_its_exit_code_and_its_last_words_are_kept(launched: Launched) -> None:
    launched.start("g1", "w1", url="ws://127.0.0.1:1")  # nobody listens there
    assert launched.wait_ended("g1") == {"w1": "exit code 1"}
    wait_for(lambda: b"ConnectionRefusedError" in launched.log("w1"), 10)
    assert sum(fact["bytes"] for fact in launched.facts) == len(launched.log("w1"))


def test_a_dismissed_worker_ends_well(launched: Launched) -> None:
    launched.start("g1", "w1")
    wait_for(lambda: "w1" in launched.coordinator.connections)
    launched.coordinator.dismiss("w1")
    assert launched.wait_ended("g1") == {"w1": "exit code 0"}


def test_a_group_that_is_stopped_while_it_starts_never_begins(launched: Launched) -> None:
    launched.start("g1", "w1")
    launched.launcher.stop("g1", kill=False)
    assert launched.wait_ended("g1") == {"w1": "not started"}
    assert launched.coordinator.connections == {}


def test_a_frozen_worker_can_be_ended(launched: Launched) -> None:
    launched.start("g1", "w1")
    wait_for(lambda: "w1" in launched.coordinator.connections)
    os.kill(workers()["w1"], signal.SIGSTOP)
    launched.launcher.stop("g1", kill=True)
    assert launched.wait_ended("g1", 15) == {"w1": "signal 9 (SIGKILL)"}


def test_a_worker_does_not_outlive_the_ray_process_that_holds_its_resources(launched: Launched) -> None:
    launched.start("g1", "w1")
    wait_for(lambda: "w1" in launched.coordinator.connections)
    pid = workers()["w1"]
    parent = psutil.Process(pid).parent()
    assert parent is not None
    parent.kill()
    cause = launched.wait_ended("g1", 30)["w1"]
    assert cause.startswith("its process vanished")
    assert workers() == {}


def test_an_agent_that_is_killed_leaves_nothing_and_the_next_group_gets_a_new_one(launched: Launched) -> None:
    launched.start("g1", "w1")
    wait_for(lambda: "w1" in launched.coordinator.connections)
    (agent,) = tagged("ray::Agent")
    agent.kill()
    assert "agent of its node was lost" in launched.wait_ended("g1", 60)["w1"]
    assert workers() == {}
    launched.start("g2", "w2")
    wait_for(lambda: "w2" in launched.coordinator.connections)


def test_a_group_that_no_node_can_hold_says_what_it_needs(
    tmp_path: Path, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastrain.trainers import ray_launcher

    monkeypatch.setattr(ray_launcher, "START_TIMEOUT_S", 1.0)
    launched = Launched(tmp_path, coordinator, cpu=64)
    launched.start("g1", "w1")
    assert "no node has room for CPU 64" in launched.wait_ended("g1", 10)["w1"]
    launched.launcher.close()


def test_the_key_of_the_attempt_is_nowhere_in_ray(launched: Launched, ray_head: Any) -> None:
    import httpx

    launched.start("g1", "w1")
    wait_for(lambda: "w1" in launched.coordinator.connections)
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text().strip()
    with httpx.Client(
        base_url=ray_head.address, headers={"Authorization": f"Bearer {token}"}, trust_env=False
    ) as http:
        for path in (
            "/api/jobs/",
            "/api/v0/actors?detail=1",
            "/api/v0/tasks?detail=1",
            "/api/v0/workers?detail=1",
        ):
            assert "the-key" not in http.get(path).raise_for_status().text

"""Groups on a real Ray: killed, refused, stopped half-way; what is known of their ends, and what is left."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from elastrain.service.up_ray import RayHead
from elastrain.trainers.launching.launcher import GroupEnded, GroupStart, WorkerStart
from elastrain.trainers.membership.messages import Notice
from elastrain.trainers.pod_stop import commands_here, node_id, ray_drains
from elastrain.trainers.storage import open_storage
from raylets import Raylet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("connected"), pytest.mark.timeout(180)]

JOB = f"j-{secrets.token_hex(5)}"  # others' jobs may run on this machine
TAG = {"ELASTRAIN_ATTEMPT": f"test/{JOB}/1"}


# A task that is not there: the worker says so and waits to be dismissed, for as long as a test needs it.
WELCOME = {
    "kind": "welcome",
    "spec": {"name": "x", "task": "no_such_module:T", "batch": {"size": 8, "microbatch": 2}, "epochs": 1},
    "beat_s": 1.0,
    "storage_url": "memory://",
    "storage_options": {},
    "package": None,
    "env": {"CANARY": "the-canary"},
}


class Coordinator:
    """Lets workers register and keeps them waiting; `silent` ones are not even answered."""

    silent = frozenset({"w5"})

    def __init__(self) -> None:
        self.connections: dict[str, ServerConnection] = {}
        self.said: dict[str, str] = {}  # how each registered
        self.server: Server = serve(self._accept, "127.0.0.1", 0, process_request=None)
        self.url = f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}"

    def _accept(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        worker = connection.request.path.partition("worker=")[2]
        self.connections[worker] = connection
        with contextlib.suppress(ConnectionClosed):  # killed
            self.said[worker] = str(connection.recv())
            if worker not in self.silent:
                connection.send(json.dumps(WELCOME))
            while True:
                connection.recv()

    def dismiss(self, worker: str) -> None:
        self.connections[worker].close()


class Launched:
    def __init__(
        self,
        store: Path,
        coordinator: Coordinator,
        cpu: float = 0.5,
        labels: Mapping[str, str] | None = None,
        attempt: int = 1,
        **resources: float,
    ) -> None:
        from elastrain.trainers.launching.ray_launcher import RayLauncher

        self.coordinator = coordinator
        self.facts: list[dict[str, Any]] = []
        self.ended: list[GroupEnded] = []
        self.notices: list[Notice] = []
        self.storage = open_storage(f"file://{store}")
        self.launcher = RayLauncher(
            JOB,
            attempt,
            tag=TAG["ELASTRAIN_ATTEMPT"],
            resources={"CPU": cpu, **resources},
            labels=labels or {},
            storage_url=f"file://{store}",
            storage_options={},
            said=self.facts.append,
        )

    def start(self, group: str, *workers: str, url: str | None = None) -> None:
        address = url or self.coordinator.url
        starts = tuple(WorkerStart(w, group, address, "the-key", JOB, 1, 0.5) for w in workers)
        self.launcher.start(GroupStart(group, starts))

    def look(self) -> None:
        for news in self.launcher.poll():
            if isinstance(news, Notice):
                self.notices.append(news)
            else:
                self.ended.append(news)

    def wait_ended(self, group: str, timeout_s: float = 120) -> dict[str, str]:
        def ended() -> GroupEnded | None:
            self.look()
            return next((e for e in self.ended if e.group == group), None)

        return dict(wait_for(ended, timeout_s).causes)

    def log(self, worker: str) -> bytes:
        return b"".join(
            self.storage.get(entry.key) for entry in self.storage.list(f"jobs/{JOB}/logs/1/{worker}")
        )


@pytest.fixture(scope="module")
def coordinator() -> Iterator[Coordinator]:
    coordinator = Coordinator()
    thread = threading.Thread(target=coordinator.server.serve_forever)
    thread.start()
    yield coordinator
    coordinator.server.shutdown()
    thread.join()


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


def wait_for(look: Callable[[], Any], timeout_s: float = 120) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain"
        time.sleep(0.05)
    return found


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


@pytest.fixture(scope="module")
def spot_node(ray_head: RayHead) -> Iterator[str]:
    """A second node, that may be taken away; -> its id."""
    node = Raylet(ray_head.log_file.parent.parent, resources={"spot": 1})
    try:
        yield node.joined().id
    finally:
        node.kill()
        node.gone()


def test_a_group_goes_to_the_node_that_has_room_when_another_job_fills_the_larger_one(
    tmp_path: Path, coordinator: Coordinator, spot_node: str
) -> None:
    """Two cores on the head, one on the other node. A launcher knows what it has placed itself, and of others
    only what Ray says is free."""
    import ray
    from elastrain.trainers.launching.ray_nodes import living_nodes

    head = ray.get_runtime_context().get_node_id()

    def free() -> float:
        return next((node.free or {}).get("CPU", 0.0) for node in living_nodes() if node.id == head)

    wait_for(lambda: free() >= 1)  # of what ended before, Ray hears late
    one = Launched(tmp_path / "one", coordinator, free(), {"ray.io/node-id": head}, attempt=2)
    one.start("g30", "w30")
    wait_for(lambda: "w30" in coordinator.connections and free() < 1)
    two = Launched(tmp_path / "two", coordinator, 1.0, attempt=3)
    two.start("g31", "w31")
    wait_for(lambda: "w31" in coordinator.connections)
    registered = json.loads(coordinator.said["w31"])
    assert registered["node"] == spot_node, "by its own count the head has more room, and would be taken"
    for launched, group, worker in ((one, "g30", "w30"), (two, "g31", "w31")):
        coordinator.dismiss(worker)
        launched.wait_ended(group)
        launched.launcher.close()


def test_every_node_is_searched_and_one_that_is_gone_is_named(spot_node: str) -> None:
    import ray
    from elastrain.trainers.launching.ray_sweep import sweep_nodes

    gone, tag, here = "ab" * 28, f"test/{JOB}/2", ray.get_runtime_context().get_node_id()
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleep, env={**os.environ, "ELASTRAIN_ATTEMPT": tag}) as orphan:
        searched, unsearched = sweep_nodes(tag, [here, spot_node, gone], workers_only=False)
        assert {node["node"] for node in searched} == {here, spot_node} and unsearched == [gone]
        assert {pid for node in searched for pid in node["pids"]} == {orphan.pid}, "both are this machine"


def test_a_drained_node_gives_its_workers_a_notice_and_gets_no_new_ones(
    tmp_path: Path,
    coordinator: Coordinator,
    ray_head: Any,
    spot_node: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = Launched(tmp_path, coordinator, spot=0.5)
    launched.start("g20", "w20")
    wait_for(lambda: "w20" in coordinator.connections)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{ray_head.ports.gcs}")
    assert spot_node in {node_id([command]) for command in commands_here()}, "Ray's processes name it"
    ray_drains(spot_node, 60)  # as a pod does that is about to be stopped

    def notice() -> Notice | None:
        launched.look()
        return next(iter(launched.notices), None)

    told = wait_for(notice)
    assert (told.worker, told.why) == ("w20", f"Ray drains its node {spot_node[:8]}")
    assert 30.0 < told.grace_s <= 60.0
    launched.start("g21", "w21")
    coordinator.dismiss("w20")
    launched.wait_ended("g20")
    assert "w21" not in coordinator.connections, "there is no other node with what it needs"
    launched.launcher.close()

"""A Ray head of our own: locked, on the loopback, taken over, and gone without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from elastrain.service.up_home import Home
from elastrain.service.up_processes import ProcessId, belonging_to
from elastrain.service.up_ray import RayHead

pytestmark = pytest.mark.ray


def wait_ready(head: RayHead, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not head.ready():
        assert head.alive, head.why()
        assert time.monotonic() < deadline, head.why()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """A head whose starter was killed right afterwards: every test here is one of a head taken over."""
    path = tmp_path_factory.mktemp("home")
    program = "import sys; from pathlib import Path; from elastrain.service.up_home import Home; \
        from elastrain.service.up_ray import RayHead; head = RayHead(Home(Path(sys.argv[1])), cpus=2); \
        print(head.start(), flush=True); import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None and starter.stdout.readline() == b"False\n"
        starter.kill()
    head = RayHead(Home(path), cpus=2)
    try:
        wait_ready(head)
        yield head
    finally:
        left = head.stop()
    assert left == []


def processes(head: RayHead) -> list[ProcessId]:
    record = head._home.read("ray.json")
    assert record is not None
    return belonging_to(ProcessId.from_dict(record), record["mark"])


def test_a_head_outlives_a_killed_service_and_the_next_one_takes_it_over(head: RayHead) -> None:
    before = head._home.read("ray.json")
    assert head.start() is True
    assert head._home.read("ray.json") == before


def test_everything_of_a_head_listens_on_the_loopback_only(head: RayHead) -> None:
    deadline = time.monotonic() + 20  # agents come a little later than the first answer
    while len(ports := listening(head)) < 8 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert len(ports) >= 8
    assert {address.removeprefix("::ffff:") for address, _ in ports} == {"127.0.0.1"}
    block = range(head.ports.base, head.ports.base + 512)
    assert {port for _, port in ports} <= set(block)


def test_who_has_no_token_is_turned_away(head: RayHead) -> None:
    for token in (None, "wrong"):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        reply = httpx.get(f"{head.address}/api/jobs/", headers=headers, trust_env=False)
        assert reply.status_code in (401, 403)


def test_no_setting_of_ours_is_in_the_environment_of_users_code(head: RayHead, tmp_path: Path) -> None:
    for process in processes(head):
        try:
            names = set(psutil.Process(process.pid).environ())
        except psutil.Error:
            continue
        assert {name for name in names if name.startswith("ELASTRAIN_")} <= {"ELASTRAIN_HEAD"}


def bearer(head: RayHead) -> dict[str, str]:
    return {"Authorization": f"Bearer {head._home.ray_token_file.read_text()}"}


def listening(head: RayHead) -> set[tuple[str, int]]:
    found = set()
    for process in processes(head):
        try:
            for connection in psutil.Process(process.pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add((connection.laddr.ip, connection.laddr.port))
        except psutil.Error:
            continue
    return found


ORPHANS = """
import os, subprocess, sys, time, ray
ray.init()

@ray.remote(num_cpus=0)
class Parent:
    def bear(self):
        sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
        return os.getpid(), subprocess.Popen(sleep, start_new_session=True).pid

actor = Parent.remote()
print("PIDS", *ray.get(actor.bear.remote()), flush=True)
time.sleep(120)
"""


def test_the_children_of_a_killed_actor_end_even_in_a_session_of_their_own(
    head: RayHead, tmp_path: Path
) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    with httpx.Client(base_url=head.address, headers=bearer(head), trust_env=False, timeout=30) as ray:
        job = ray.post("/api/jobs/", json={"entrypoint": f"{sys.executable} {script}"}).json()["job_id"]
        deadline = time.monotonic() + 60
        while "PIDS" not in (logs := ray.get(f"/api/jobs/{job}/logs").json()["logs"]):
            assert time.monotonic() < deadline, logs
            time.sleep(0.5)
        parent, child = (int(pid) for pid in logs.split("PIDS", 1)[1].split()[:2])
        assert ProcessId.of(child) is not None
        os.kill(parent, signal.SIGKILL)
        while ProcessId.of(child) is not None:  # Ray looks every ten seconds
            assert time.monotonic() < deadline + 30, "the child of a killed actor lives on"
            time.sleep(0.5)
        ray.post(f"/api/jobs/{job}/stop")


def test_a_head_that_loses_a_process_of_its_own_ends_and_can_be_started_again(head: RayHead) -> None:
    gcs = next(p for p in processes(head) if psutil.Process(p.pid).name().startswith("gcs_server"))
    os.kill(gcs.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60  # without its store, Ray can take half a minute to end
    while head.alive and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not head.alive
    assert head.start() is False
    wait_ready(head)

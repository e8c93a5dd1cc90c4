"""A sweep ends what belongs to an attempt wherever it hid, leaves others alone, and says what it did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count

import psutil
import pytest

from elastrain.trainers.launching.parent import die_with_parent
from elastrain.trainers.launching.sweep import OF_A_GROUP, TAG, WORKER, Found, belonging, sweep

numbers = count()
SLEEP = "import time; time.sleep(60)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEP}"
# its child is in a session of its own, and nobody's child any more
LEAVES_A_GRANDCHILD = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True)
print(child.pid, flush=True)
"""
# a program that is started with an empty environment, while the one that started it lives
STARTS_A_STRANGER = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True, env={{}})
print(child.pid, flush=True)
{SLEEP}
"""
LEAVES_A_DEFUNCT_ONE = f"""
import os
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
{SLEEP}
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def tag() -> str:
    return f"test/{os.getpid()}/{next(numbers)}"


@pytest.fixture
def start(tag: str) -> Iterator[Start]:
    """A program that carries the tag, as a worker's does; it has said its first line."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, name: str = sys.executable, **marks: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(sys.path)  # -S leaves out the environment's packages, ours among them
        environment = {**os.environ, "PYTHONPATH": path, TAG: tag, **(marks or {WORKER: "w1"})}
        process = subprocess.Popen(
            [name, "-S", "-c", program],
            executable=sys.executable,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        assert process.stdout is not None
        process.stdout.close()  # others may hold its other end
        process.kill()
        process.wait()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_process_that_ignores_sigterm_is_ended_and_named(tag: str, start: Start) -> None:
    process = start(DEAF)
    assert said(process) == "deaf"
    process.terminate()
    swept = sweep(tag)
    assert (swept.pids, swept.left) == ([process.pid], [])
    assert process.wait(5) == -signal.SIGKILL
    assert sweep(tag).pids == []


def test_a_grandchild_in_a_session_of_its_own_is_found_after_its_parent_died(tag: str, start: Start) -> None:
    process = start(LEAVES_A_GRANDCHILD)
    grandchild = int(said(process))
    process.wait(5)
    assert runs(grandchild)
    assert sweep(tag).pids == [grandchild]
    assert not runs(grandchild)


def test_a_child_with_an_environment_of_its_own_goes_with_its_parent(tag: str, start: Start) -> None:
    process = start(STARTS_A_STRANGER)
    stranger = int(said(process))
    assert sweep(tag).pids == sorted([process.pid, stranger])
    assert not runs(stranger)


def test_a_stopped_process_is_ended(tag: str, start: Start) -> None:
    process = start(DEAF)
    said(process)
    process.send_signal(signal.SIGSTOP)
    assert sweep(tag).pids == [process.pid]


def test_a_defunct_process_is_no_process(tag: str, start: Start) -> None:
    process = start(LEAVES_A_DEFUNCT_ONE)
    defunct = int(said(process))
    assert psutil.Process(defunct).status() == psutil.STATUS_ZOMBIE
    swept = sweep(tag)
    assert (swept.pids, swept.left) == ([process.pid], [])


def test_another_attempts_processes_are_left_alone(tag: str, start: Start) -> None:
    other = start(DEAF, **{TAG: f"{tag}0", WORKER: "w1"})
    said(other)
    assert sweep(tag).pids == []
    assert other.poll() is None


def test_an_agent_ends_what_workers_left_and_not_the_driver_beside_it(tag: str, start: Start) -> None:
    driver, worker = start(DEAF, ROLE="driver"), start(DEAF)
    said(driver), said(worker)
    assert sweep(tag, workers_only=True).pids == [worker.pid]
    assert driver.poll() is None
    assert sweep(tag).pids == [driver.pid]


def test_what_does_not_end_is_named(tag: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(DEAF)
    said(process)
    monkeypatch.setattr(psutil.Process, "kill", lambda self: None)  # as one in uninterruptible sleep
    swept = sweep(tag, patience_s=0.1)
    monkeypatch.undo()
    assert (swept.pids, swept.left) == ([], [process.pid])


def test_a_worker_that_sweeps_its_own_attempt_survives_it(tag: str, start: Start) -> None:
    other = start(DEAF)
    said(other)
    program = f"from elastrain.trainers.launching.sweep import sweep; print(sweep({tag!r}).pids)"
    environment = {**os.environ, TAG: tag, WORKER: "w2"}
    swept = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert swept.stdout.strip() == f"[{other.pid}]"


def test_whoever_sweeps_is_spared_and_not_looked_behind() -> None:
    processes = [
        Found(1, 0, None, None),
        Found(10, 1, "t", None),  # the one that sweeps
        Found(11, 10, None, None),
        Found(12, 10, "t", "w1"),
        Found(13, 12, None, None),
    ]
    assert belonging(processes, "t", workers_only=False, spare={1, 10}) == {12, 13}
    assert belonging(processes, "t", workers_only=True) == {12, 13}
    assert belonging(processes, "t", workers_only=False) == {10, 11, 12, 13}


def test_rays_own_are_rays_to_end_and_their_children_are_not() -> None:
    processes = [
        Found(20, 1, "t", None, of_ray=True),  # an actor
        Found(21, 20, "t", "w1"),
        Found(22, 20, None, None),
        Found(23, 1, "t", None),
    ]
    assert belonging(processes, "t", workers_only=False) == {21, 23}


def test_a_workers_child_that_calls_itself_rays_is_ended_all_the_same(tag: str, start: Start) -> None:
    rays, workers = start(DEAF, name="ray::Agent", ROLE="agent"), start(DEAF, name="ray::Agent")
    said(rays), said(workers)
    assert sweep(tag).pids == [workers.pid]
    assert rays.poll() is None


def test_what_ray_train_left_of_a_group_that_ended_while_it_started_is_ended(tag: str, start: Start) -> None:
    left, driver = start(DEAF, name=OF_A_GROUP, ROLE="cleaner"), start(DEAF, ROLE="driver")
    said(left), said(driver)
    assert sweep(tag, workers_only=True).pids == [left.pid], "and so when the driver sweeps"
    assert driver.poll() is None


def test_a_process_whose_parent_is_another_one_by_now_ends_at_once() -> None:
    pid = os.fork()
    if pid == 0:
        die_with_parent(parent=1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_a_process_dies_with_its_parent(start: Start) -> None:
    program = f"""
import os, sys
from elastrain.trainers.launching.parent import die_with_parent
parent = os.getpid()
pid = os.fork()
if pid == 0:
    die_with_parent(parent)
    print(os.getpid(), flush=True)
    {SLEEP}
os.waitpid(pid, 0)
"""
    process = start(program)
    child = int(said(process))
    assert runs(child)
    process.kill()
    while runs(child):
        time.sleep(0.01)

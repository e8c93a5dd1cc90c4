"""Nothing is ended that merely got a dead process's pid, and nothing of ours is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from elastrain.service.up_processes import MARK, ProcessId, belonging_to, end_all

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
FLEEING = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


@contextmanager
def head(program: str, mark: str = "m") -> Iterator[tuple[subprocess.Popen[bytes], ProcessId, bytes]]:
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, MARK: mark},
        start_new_session=True,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    first_line = child.stdout.readline()
    leader = ProcessId.of(child.pid)
    assert leader is not None
    try:
        yield child, leader, first_line
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_process_that_got_the_pid_of_a_dead_one_is_left_alone() -> None:
    with head(STUBBORN) as (child, leader, _):
        earlier = replace(leader, started=leader.started - 3600)
        assert leader.alive and not earlier.alive
        earlier.signal(signal.SIGKILL)
        time.sleep(0.1)
        assert child.poll() is None


def test_a_child_that_left_the_session_is_found_and_ended_too() -> None:
    with head(FLEEING) as (child, leader, line):
        fled = ProcessId.of(int(line))
        assert fled is not None and fled in belonging_to(leader, "m")
        child.kill()  # its parent is gone, its session is another: only the mark is left
        child.wait()
        assert end_all(lambda: belonging_to(leader, "m"), grace_s=1) == []
        assert not fled.alive


def test_what_ignores_sigterm_is_killed_after_the_grace_time() -> None:
    with head(STUBBORN) as (child, leader, _):
        begun = time.monotonic()
        assert end_all(lambda: belonging_to(leader, "m"), grace_s=0.3) == []
        assert time.monotonic() - begun < 5
        assert child.wait() == -signal.SIGKILL


def test_another_heads_processes_are_not_found() -> None:
    with head(STUBBORN, mark="one") as (_, one, _), head(STUBBORN, mark="two") as (_, two, _):
        assert belonging_to(one, "one") == [one]
        assert belonging_to(two, "two") == [two]

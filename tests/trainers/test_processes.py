"""Processes that must be gone: with their children, in spite of sessions of their own, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastrain.trainers.launching.processes import end_process, is_alive, make_scratch

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def family() -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """A process, and its child in a session of its own."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        yield psutil.Process(process.pid), child
        for one in (process, child):
            if psutil.pid_exists(one.pid):
                one.kill()


def alive(process: psutil.Process) -> bool:
    return is_alive(process.pid, process.create_time())


def test_a_process_ends_with_all_that_it_started(family: tuple[psutil.Process, psutil.Process]) -> None:
    parent, child = family
    end_process(parent.pid, parent.create_time())
    assert not alive(parent)
    assert not alive(child)


def test_a_pid_that_was_given_to_another_process_is_left_alone(
    family: tuple[psutil.Process, psutil.Process],
) -> None:
    parent, _ = family
    end_process(parent.pid, parent.create_time() - 100)
    assert alive(parent)


def test_folders_of_killed_processes_are_removed_and_those_of_living_ones_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import time; from elastrain.trainers.launching.processes import make_scratch;"
        "print(make_scratch('scratch-'), flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    ) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        mine = make_scratch("scratch-")
        assert theirs.is_dir() and mine.is_dir()
        assert mine.stat().st_mode & 0o077 == 0
        process.kill()
    time.sleep(0.05)
    make_scratch("scratch-")
    assert mine.is_dir() and not theirs.exists()

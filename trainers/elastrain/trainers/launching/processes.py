"""Processes by pid and start time: does one run, ending it with its children, folders that go with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import psutil

OWNER = "owner.json"  # in a scratch folder: the process that it belongs to
GONE_S = 5.0


def make_scratch(prefix: str) -> Path:
    """A new folder for temporary files, closed to others. What killed processes left of theirs is removed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError, ValueError, KeyError):  # somebody else's, or being made now
            owner = json.loads((folder / OWNER).read_text())
            if not is_alive(owner["pid"], owner["started"]):
                shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    owner = {"pid": os.getpid(), "started": psutil.Process().create_time()}
    (folder / OWNER).write_text(json.dumps(owner))
    return folder


def is_alive(pid: int, started: float) -> bool:
    """Whether this very process runs. started: seconds since the epoch, as psutil tells it."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 0.05 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_process(pid: int, started: float) -> None:
    """SIGKILL a process with everything that it started; does nothing if it is gone. Returns when it is.

    Raises TimeoutError if the kernel does not let it go.
    """
    if not is_alive(pid, started):
        return
    family = [psutil.Process(pid)]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += family[0].children(recursive=True)
    _kill_all(family)


def _kill_all(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.send_signal(signal.SIGKILL)  # psutil checks the start time first
    _, left = psutil.wait_procs(processes, timeout=GONE_S)
    running = [p for p in left if is_alive(p.pid, p.create_time())]
    if running:
        raise TimeoutError(f"processes {[p.pid for p in running]} are still there {GONE_S:g} s after SIGKILL")


def cause(code: int) -> str:
    """How a process ended, as known facts: 'exit code 1', 'signal 9 (SIGKILL)'."""
    if code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"

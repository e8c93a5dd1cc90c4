"""A worker on Ray: the function that a Ray Train run calls, and the process of its own that it watches over.

    Ray Train's worker actor (holds the resources) -- supervise() --> worker process (holds the model)

The worker is a process beside Ray's for three reasons: only a parent learns how a process ended, which makes
"exit code 1" and "signal 11" facts; the user's code has a main thread, output and module path of its own; and
whoever ends it ends no part of Ray. It never outlives the actor: the kernel kills it with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from elastrain.trainers.launching.launcher import WorkerStart
from elastrain.trainers.launching.parent import die_with_parent
from elastrain.trainers.launching.processes import cause
from elastrain.trainers.launching.sweep import TAG, WORKER
from elastrain.trainers.numerics.allocator import tuned

_KEPT: list[object] = []  # called from C, so they must stay
FOR_THE_DRIVER = ("ELASTRAIN_CLAIM", "ELASTRAIN_DRIVER_URL")


class WorkerFailed(Exception):
    """The worker process ended by itself, not well. The message says how."""


class Files:
    """What agent, supervisor and worker tell each other: small files in the agent's private folder.

    Nothing of it goes through Ray, which shows arguments and configurations to whoever may call its API.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log(self, worker: str) -> Path:
        return self.folder / f"{worker}.log"

    def scratch(self, worker: str) -> Path:
        """The worker's current folder; it goes with the agent."""
        return self.folder / f"{worker}.files"

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """In one move. The folder is closed to other users."""
        partial = self.folder / f".{name}.partial"
        partial.write_text(json.dumps(data))
        partial.replace(self.folder / name)

    def read(self, name: str) -> dict[str, Any] | None:
        """None if it was not written."""
        try:
            return dict(json.loads((self.folder / name).read_text()))
        except FileNotFoundError:
            return None


def supervise(config: Mapping[str, Any]) -> None:
    """Run this rank's worker until it ends. Raises WorkerFailed unless its exit code is 0.

    config: `folder` of the agent, `group`, and `workers`, their ids by rank.
    """
    import ray.train  # only here: the worker process has no use for it, and it takes seconds

    worker = config["workers"][ray.train.get_context().get_world_rank()]
    watch_over(config["folder"], config["group"], worker)


def watch_over(folder: str, group: str, worker: str) -> None:
    """Run one worker, or server, until it ends. Raises WorkerFailed unless its exit code is 0.

    In the process of the actor that holds its resources.
    """
    import ray

    files = Files(Path(folder))
    with files.log(worker).open("ab") as output:
        if files.read(f"{group}.stop") is not None:
            return  # nobody needs it any more
        _hear_of_children()
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, folder, worker, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=_made(files.scratch(worker)),
            env=_environment(files, worker),
            start_new_session=True,  # so that its children can be ended with it
        )
    _pass_on_sigterm(process)
    started = psutil.Process(process.pid).create_time()
    actor = ray.get_runtime_context().get_actor_id()
    files.write(f"{worker}.pid", {"pid": process.pid, "started": started, "actor": actor})
    code = process.wait()
    files.write(f"{worker}.exit", {"code": code})
    if code != 0:
        raise WorkerFailed(f"{worker}: {cause(code)}")


def _environment(files: Files, worker: str) -> dict[str, str]:
    start = files.read(f"{worker}.start") or {}
    return {
        **tuned({n: value for n, value in os.environ.items() if n not in FOR_THE_DRIVER}),
        TAG: str(start["tag"]),
        WORKER: worker,
        "OMP_NUM_THREADS": str(start["threads"]),  # Ray's own choice differs from other launchers'
        "PYTHONUNBUFFERED": "1",  # what was printed before a SIGKILL is in the log
    }


def _hear_of_children() -> None:
    """Let this process, and the worker after it, learn how their children end.

    Where Ray ends a dead actor's children, its workers ignore SIGCHLD: the kernel forgets exit codes, and
    programs started from here inherit that. Python's own `signal` refuses outside the main thread.
    """
    ctypes.CDLL(None).signal(signal.SIGCHLD, 0)  # SIG_DFL


def _pass_on_sigterm(process: subprocess.Popen[bytes]) -> None:
    """From now on SIGTERM to this process of Ray's means the worker: for it, it is a notice (sigterm.py).

    Ray Train calls us in a thread, and only the main thread may install handlers: it is asked to do so
    between two of its calls. Until it has, SIGTERM ends this process, and with it the worker.
    """

    def pass_on(*_: object) -> None:
        process.send_signal(signal.SIGTERM)

    def install(_: object) -> int:
        signal.signal(signal.SIGTERM, pass_on)
        return 0

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(install)
    _KEPT.append(callback)
    ctypes.pythonapi.Py_AddPendingCall(callback, None)


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def main(folder: str, worker: str, parent: str) -> int:
    """The worker process, from its first line to its last; -> its exit code."""
    die_with_parent(int(parent))
    start = Files(Path(folder)).read(f"{worker}.start")
    if start is None:
        print(f"{worker} was not started by an agent that is still there", file=sys.stderr)
        return 1
    node, _ = start.pop("node"), start.pop("tag")
    from elastrain.trainers import worker as engine  # torch comes with it: only here

    return engine.main(WorkerStart.from_dict(start), node)


if __name__ == "__main__":
    exit_code = main(*sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # parked process groups have threads that would not end

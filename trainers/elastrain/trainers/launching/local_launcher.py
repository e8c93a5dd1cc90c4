"""Workers as processes of this machine. They die with the process that started them.

Importing torch takes longer than everything else in a worker's start. So one single-threaded process
imports it once (multiprocessing's fork server) and forks each worker before any tensor work: a worker
starts in a fraction of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from elastrain.trainers.launching.launcher import GroupEnded, GroupStart, WorkerStart
from elastrain.trainers.launching.parent import die_with_parent
from elastrain.trainers.launching.processes import cause
from elastrain.trainers.launching.sweep import TAG, WORKER
from elastrain.trainers.membership.messages import Notice
from elastrain.trainers.numerics.allocator import tuned_children

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["elastrain.trainers.worker"])


class LocalLauncher:
    """One process per worker; its output goes to `{logs}/{worker}.log`."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._groups: dict[str, dict[str, ForkServerProcess]] = {}
        self._told: set[str] = set()

    def start(self, group: GroupStart) -> None:
        self._groups[group.group] = {w.worker: self._spawn(w) for w in group.workers}

    def _spawn(self, start: WorkerStart) -> ForkServerProcess:
        process = _context.Process(target=_run, args=(start, self.logs / f"{start.worker}.log", sys.path))
        with tuned_children():  # the first start starts the fork server
            process.start()
        return process

    def pid(self, worker: str) -> int:
        """The process of a worker, e.g. to kill it in a test."""
        return next(ps[worker].pid or 0 for ps in self._groups.values() if worker in ps)

    def stop(self, group: str, *, kill: bool) -> None:
        if kill:
            for process in self._groups.get(group, {}).values():
                process.kill()

    def poll(self) -> list[GroupEnded | Notice]:
        ended: list[GroupEnded | Notice] = []
        for group, processes in self._groups.items():
            codes = {w: p.exitcode for w, p in processes.items()}
            if group not in self._told and all(c is not None for c in codes.values()):
                self._told.add(group)
                ended.append(GroupEnded(group, {w: cause(c) for w, c in codes.items() if c is not None}))
        return ended

    def close(self) -> None:
        for processes in self._groups.values():
            for process in processes.values():
                process.kill()
                process.join(timeout=30)


def _run(start: WorkerStart, log: Path, path: list[str]) -> None:
    """The first lines of a forked worker."""
    die_with_parent()
    from elastrain.trainers import worker

    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.path[:] = path
    os.environ.update({TAG: f"local/{start.job}/{start.attempt}", WORKER: start.worker})
    code = worker.main(start)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # parked process groups have threads that would not end

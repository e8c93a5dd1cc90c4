"""Workers as processes of this machine. They die with the process that started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from elastrain.trainers.launcher import GroupEnded, GroupStart, WorkerStart


class LocalLauncher:
    """One subprocess per worker; its output goes to `{logs}/{worker}.log`."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._groups: dict[str, dict[str, subprocess.Popen[bytes]]] = {}
        self._told: set[str] = set()

    def start(self, group: GroupStart) -> None:
        self._groups[group.group] = {w.worker: self._spawn(w) for w in group.workers}

    def _spawn(self, start: WorkerStart) -> subprocess.Popen[bytes]:
        threads = str(max(1, int(start.cpu)))
        env = {**os.environ, "ELASTRAIN_ATTEMPT": f"{start.job}/{start.attempt}", "OMP_NUM_THREADS": threads}
        with (self.logs / f"{start.worker}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "elastrain.trainers.worker", json.dumps(start.to_dict())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
            )

    def pid(self, worker: str) -> int:
        """The process of a worker, e.g. to kill it in a test."""
        return next(ps[worker].pid for ps in self._groups.values() if worker in ps)

    def stop(self, group: str, *, kill: bool) -> None:
        if kill:
            for process in self._groups.get(group, {}).values():
                process.kill()

    def poll(self) -> list[GroupEnded]:
        ended = []
        for group, processes in self._groups.items():
            codes = {w: p.poll() for w, p in processes.items()}
            if group not in self._told and all(c is not None for c in codes.values()):
                self._told.add(group)
                ended.append(GroupEnded(group, {w: cause(c) for w, c in codes.items() if c is not None}))
        return ended

    def close(self) -> None:
        for processes in self._groups.values():
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
                process.wait(timeout=30)


def cause(code: int) -> str:
    """How a process ended, as known facts: 'exit code 1', 'signal 9 (SIGKILL)'."""
    if code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"

"""Local workers for rough tests: remembered by pid, killed late if so wished, open to a look."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil

from elastrain.trainers.launching import local_launcher
from elastrain.trainers.launching.launcher import WorkerStart
from elastrain.trainers.launching.local_launcher import LocalLauncher


class RoughLauncher(LocalLauncher):
    """kill_after_s: so long takes an order to kill, as where an agent on another node carries it out."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs)
        self.kill_after_s = 0.0
        self.started: list[psutil.Process] = []

    def _spawn(self, start: WorkerStart) -> ForkServerProcess:
        log = self.logs / f"{start.worker}.log"
        process = local_launcher._context.Process(
            target=_begin, args=(self._place(start), start, log, sys.path)
        )
        process.start()
        try:
            self.started.append(psutil.Process(process.pid))
        except psutil.NoSuchProcess:
            pass  # so soon gone that it left nothing to remember
        return process

    def _place(self, start: WorkerStart) -> Callable[[], None]:
        """What the worker's process does first, e.g. to move into a network namespace."""
        return _nowhere

    def stop(self, group: str, *, kill: bool) -> None:
        if kill and self.kill_after_s:
            later = partial(super().stop, group, kill=True)
            asyncio.get_running_loop().call_later(self.kill_after_s, later)
        else:
            super().stop(group, kill=kill)

    def still_running(self) -> list[psutil.Process]:
        """Of all that were started, and what still writes to their logs."""
        return [p for p in self.started if runs(p)] + [
            p for p in psutil.process_iter() if _writes_to(p).startswith(f"{self.logs}/") and runs(p)
        ]

    def stacks(self) -> str:
        """Where every thread of every worker is just now, as the ends of their logs."""
        alive = [p for p in self.started if runs(p)]
        for process in alive:
            process.send_signal(signal.SIGUSR1)
        psutil.wait_procs(alive, timeout=1.0)
        return "\n".join(f"--- {p.name}\n{p.read_text()[-6000:]}" for p in sorted(self.logs.glob("w*.log")))


def _nowhere() -> None:
    pass


def _begin(place: Callable[[], None], start: WorkerStart, log: Path, path: list[str]) -> None:
    place()
    faulthandler.register(signal.SIGUSR1, file=log.open("a"), all_threads=True)
    local_launcher._run(start, log, path)


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _writes_to(process: psutil.Process) -> str:
    try:
        return str(Path(f"/proc/{process.pid}/fd/1").readlink())
    except OSError:
        return ""

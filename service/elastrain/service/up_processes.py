"""Processes by pid *and* start time, so that nothing is ended that merely got a dead one's pid."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import psutil

MARK = "ELASTRAIN_HEAD"  # environment variable: which head a process belongs to, wherever it went since


@dataclass(frozen=True)
class ProcessId:
    """One process of this machine. `started` in seconds since the epoch, as psutil says it."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this pid now; None if there is none (a zombie counts as none)."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return cls(pid, process.create_time())
        except psutil.Error:
            return None

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ProcessId:
        return cls(int(data["pid"]), float(data["started"]))

    def to_dict(self) -> dict[str, Any]:
        return {"pid": self.pid, "started": self.started}

    @property
    def alive(self) -> bool:
        now = ProcessId.of(self.pid)
        # The tolerance is for a clock that was set: pids take longer than that to come round.
        return now is not None and abs(now.started - self.started) < 5.0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def belonging_to(leader: ProcessId, mark: str) -> list[ProcessId]:
    """Every live process of a head: in its session, or carrying its mark, or below one that is.

    A Ray worker renames itself, which can overwrite its environment; a driver has a session of its own.
    Neither sign finds all, both together do.
    """
    found: dict[int, ProcessId] = {}
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in found or not (_in_session(process.pid, leader) or _marked(process, mark)):
                continue
            for member in (process, *process.children(recursive=True)):
                identity = ProcessId.of(member.pid)
                if identity is not None and member.pid != os.getpid():
                    found[member.pid] = identity
    return list(found.values())


def _in_session(pid: int, leader: ProcessId) -> bool:
    # The leader's pid stays taken while a process of its session lives: it cannot mean another session.
    return os.getsid(pid) == leader.pid


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except psutil.Error:
        return False


def end_all(
    find: Callable[[], Iterable[ProcessId]], *, grace_s: float, deadline_s: float = 20.0
) -> list[ProcessId]:
    """End what `find` finds, until it finds nothing: SIGTERM, and after `grace_s` SIGKILL.

    Returns what would not go within `deadline_s`: an empty list, unless the system itself is stuck.
    """
    begun = time.monotonic()
    asked: set[ProcessId] = set()
    while left := list(find()):
        waited_s = time.monotonic() - begun
        if waited_s > deadline_s:
            return left
        for process in left:
            if waited_s >= grace_s:
                process.signal(signal.SIGKILL)
            elif process not in asked:
                asked.add(process)
                process.signal(signal.SIGTERM)
        time.sleep(0.1)
    return []

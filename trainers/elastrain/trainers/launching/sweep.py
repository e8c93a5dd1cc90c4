"""Finding an attempt's processes on this machine by their tag, ending them, seeing that they are gone.

    look at every process -> those that carry the tag, and what descends from them -> SIGKILL -> look again

Ray's own processes carry it too, and are Ray's to end: some serve the whole cluster and live on, such as a
detached actor that happened to be made by the first Ray Train run there.

The tag is in the environment that a process was started with, and every child inherits it: neither a session
of its own (setsid) nor a parent that died hides one. Only a program that was started with another environment
by one that is gone is not found.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import psutil

TAG = "ELASTRAIN_ATTEMPT"  # of every process of an attempt: "{installation}/{job}/{attempt}"
WORKER = "ELASTRAIN_WORKER"  # beside it in a worker's, and in those of what it starts: "w3"
# Ray Train's, one for each group, detached: it ends with the group, but for good stays if the group is ended
# while it starts, before it was told whom to watch
OF_A_GROUP = "ray::PlacementGroupCleaner"
PATIENCE_S = 5.0  # for the kernel, which lets a killed process go once what it waits for is over
LOOK_AGAIN_S = 0.05


@dataclass(frozen=True)
class Found:
    """A process as one look shows it. A defunct one is none: it holds nothing but a number."""

    pid: int
    parent: int
    tag: str | None
    worker: str | None  # of which worker it is, or is a child
    of_ray: bool = False  # by its name, which anybody can take; but no worker's is
    of_group: bool = False  # and serves one group only, as a worker does


@dataclass(frozen=True)
class Swept:
    """What a sweep did. seconds: how long it took, until it saw that nothing is left."""

    pids: list[int]  # ended
    left: list[int]  # that the kernel did not let go in time
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def belonging(
    processes: Iterable[Found], tag: str, *, workers_only: bool, spare: Collection[int] = ()
) -> set[int]:
    """Pids of an attempt: those that carry its tag, and whatever descends from them, but for Ray's. Pure.

    workers_only: leave those alone that are no worker's, such as the driver.
    spare: pids that are left alone, and not looked behind.
    """
    children: dict[int, list[int]] = {}
    found: list[int] = []
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
        of_workers = process.worker is not None or process.of_group
        if process.tag == tag and (of_workers or not (workers_only or process.of_ray)):
            found.append(process.pid)
    reached: set[int] = set()
    while found:
        pid = found.pop()
        if pid not in reached and pid not in spare:
            reached.add(pid)
            found += children.get(pid, [])
    return reached


def sweep(tag: str, *, workers_only: bool = False, patience_s: float = PATIENCE_S) -> Swept:
    """SIGKILL what belongs to the attempt on this machine, again and again until nothing does."""
    began = time.monotonic()
    ended: set[int] = set()
    while True:
        seen = dict(_look())
        left = belonging(seen.values(), tag, workers_only=workers_only, spare=_own_line(seen))
        seconds = time.monotonic() - began
        if not left or seconds > patience_s:
            return Swept(sorted(ended - left), sorted(left), round(seconds, 3))
        _kill(left)
        ended |= left
        time.sleep(LOOK_AGAIN_S)


def _look() -> Iterator[tuple[int, Found]]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone meanwhile, defunct, or not ours to look at
            if not _runs(process):
                continue
            parent, environment, command = process.ppid(), dict[str, str](), ""
            with contextlib.suppress(psutil.AccessDenied):
                environment, command = process.environ(), " ".join(process.cmdline())
            tag, worker = environment.get(TAG), environment.get(WORKER)
            of_group = command.startswith(OF_A_GROUP)
            yield process.pid, Found(process.pid, parent, tag, worker, _is_rays(command), of_group)


def _is_rays(command: str) -> bool:
    """Actors and tasks name themselves; before that, the script shows."""
    return command.startswith("ray::") or "/ray/_private/workers/" in command


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _own_line(seen: dict[int, Found]) -> set[int]:
    """This process and those above it: whoever sweeps is no part of what is swept."""
    line, pid = set[int](), os.getpid()
    while pid not in line:
        line.add(pid)
        pid = seen[pid].parent if pid in seen else 0
    return line


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()

"""What of a job, and of a house, is on this machine."""

from __future__ import annotations

import psutil

from e2e.house import House
from elastrain.client import Job


def of(job: Job) -> list[psutil.Process]:
    """Every process of the job on this machine, by what it has in its environment.

    But for Ray's own: an actor of Ray Train that serves the whole cluster, and carries the tag of whoever
    came first; the one that saw the driver end, and a shell that looks every second whether it lives.
    """
    rays = (
        "ray::_AutoscalingCoordinatorActor",
        "ray::JobSupervisor",
        "/bin/sh -c while kill -s 0",
        "sleep 1",
    )
    found = []
    for process in psutil.process_iter():
        try:
            tagged = f"/{job.id}/" in process.environ().get("ELASTRAIN_ATTEMPT", "")
            if tagged and not " ".join(process.cmdline()).startswith(rays):
                found.append(process)
        except psutil.Error:
            continue
    return found


def no_zombies(house: House) -> bool:
    """Nobody of this house has a child that has ended and was not waited for."""
    ours = {process.pid for process in house.processes()}
    ended = [p for p in psutil.process_iter(["status", "ppid"]) if p.info["status"] == psutil.STATUS_ZOMBIE]
    return not any(process.info["ppid"] in ours for process in ended)

"""`python -m elastrain.trainers.pod_stop SECONDS`: what a pod with a Ray node does before it is stopped.

Kubernetes sends SIGTERM to a container's first process only, which is Ray's and passes nothing on: the
workers would hear nothing until they are killed. So the pod's preStop hook runs this, and Kubernetes waits
for it. It has Ray drain the node, which gives every worker here its notice and new ones no place, and
returns once they have handed over and ended, or when the time is up. Without workers it returns at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import psutil

from elastrain.trainers.launching.sweep import WORKER

LOOK_EVERY_S = 0.5
NODE_ID = ("--node_id=", "--node-id=")  # how Ray's own processes are told where they are

Commands = Iterable[Sequence[str]]


def stop(
    seconds: float,
    workers: Callable[[], int],
    commands: Callable[[], Commands],
    drain: Callable[[str, int], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """-> what came of it. workers: how many processes of workers are here. commands: the command lines of
    this machine's processes. drain: has Ray drain a node, which has so many seconds left."""
    if not workers():
        return "no worker is here"
    deadline = clock() + seconds
    node = node_id(commands())
    if node is None:
        return "Ray does not run here: its workers get no notice"
    drain(node, int(seconds))
    while workers():
        if clock() >= deadline:
            return f"after {seconds:g} s workers are still here"
        sleep(LOOK_EVERY_S)
    return f"node {node[:8]} is drained: its workers have handed over"


def node_id(commands: Commands) -> str | None:
    """The id of the Ray node here, as one of its processes names it."""
    for command in commands:
        for argument in command:
            for flag in NODE_ID:
                if argument.startswith(flag):
                    return argument.removeprefix(flag)
    return None


def workers_here() -> int:
    """Processes of workers, by the mark in their environment; those that are gone meanwhile are none."""
    found = 0
    for process in psutil.process_iter():
        try:
            found += WORKER in process.environ() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
    return found


def commands_here() -> Commands:
    """The command lines of this machine's processes."""
    for process in psutil.process_iter():
        try:
            yield process.cmdline()
        except psutil.Error:
            continue


def ray_drains(node: str, seconds: int) -> None:
    """Ask Ray's GCS (RAY_ADDRESS, which KubeRay sets). Raises CalledProcessError with what Ray said above."""
    subprocess.run(
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--node-id={node}"),
            *(["--address", os.environ["RAY_ADDRESS"]] if "RAY_ADDRESS" in os.environ else []),
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=its pod is being stopped",
            f"--deadline-remaining-seconds={seconds}",
        ],
        check=True,
    )


if __name__ == "__main__":
    print(stop(float(sys.argv[1]), workers_here, commands_here, ray_drains), flush=True)

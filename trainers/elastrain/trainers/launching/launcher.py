"""Who starts worker processes: a small protocol with two implementations.

`LocalLauncher` starts processes on this machine, `RayLauncher` starts one Ray Train run per group. The
attempt knows only these four verbs, so that the whole engine runs, and is tested, without Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from elastrain.trainers.membership.messages import Notice


@dataclass(frozen=True)
class WorkerStart:
    """What a worker process is told when it is started. All else comes over the coordinator's connection."""

    worker: str  # "w3", stable for the life of the process
    group: str  # "g2"
    coordinator: str  # ws://host:port
    key: str  # the attempt's key: who does not have it cannot register
    job: str
    attempt: int
    cpu: float = 1.0  # cores
    server: bool = False  # keeps state and computes nothing
    processes: int = 1  # that the model is split among; the others are its children
    split: str = "fully_shard"  # how
    threads: int = 1  # that each of them computes with
    members: int = 1  # how many keep the job's state together: its workers, or its servers

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkerStart:
        return cls(**data)


@dataclass(frozen=True)
class GroupStart:
    """Workers that start, end and fail together: one failure domain."""

    group: str
    workers: tuple[WorkerStart, ...]
    avoid_nodes: tuple[str, ...] = ()

    @property
    def server(self) -> bool:
        """Is it a server's, which is alone in its group?"""
        return any(worker.server for worker in self.workers)

    def needs(self, resources: Mapping[str, float]) -> Mapping[str, float]:
        """Of each worker, which gets `resources`; a server its own share of the CPU, and nothing else."""
        if not self.server:
            return resources
        cpu = self.workers[0].cpu
        return {"CPU": cpu} if cpu > 0 else {}


@dataclass(frozen=True)
class GroupEnded:
    """Every process of a group is gone. `causes`: known facts only, as "signal 9 (SIGKILL)"."""

    group: str
    causes: Mapping[str, str] = field(default_factory=dict)


class Launcher(Protocol):
    """Starts and ends groups. No call waits for a process, but `close`."""

    def start(self, group: GroupStart) -> None:
        """Begin to start a group; returns at once."""

    def stop(self, group: str, *, kill: bool) -> None:
        """End a group. Without `kill` its workers are given the chance to end by themselves."""

    def poll(self) -> list[GroupEnded | Notice]:
        """What happened since the last call: groups that ended, each one once, and workers whose node is
        going to be taken away."""

    def close(self) -> dict[str, Any] | None:
        """End every process that was started; returns when they are gone, with the receipt if there is one
        (see ray_sweep.receipt)."""

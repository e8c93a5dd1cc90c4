"""The words of the scheduler: what jobs ask, what nodes have, what the policy is, what the answer is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from elastrain.service.jobs import Reason
from elastrain.service.scheduling.curve import Curve

Resources = Mapping[str, float]
# how the name of a resource begins that stands for a label of the node, which has no end of it
LABEL = "label "
STRANGER = "a job of another project"
# of a waiting job that nobody looked at in detail, so that it need not be written down anew for each change
BEHIND = "It waits behind the jobs that are before it in the queue"


@dataclass(frozen=True)
class Node:
    """What a node has, in Ray's names: {"CPU": 8, "GPU": 1}. others: what is used by none of our jobs.
    new: it is not there yet, but Ray's autoscaler could add it."""

    id: str
    resources: Resources
    others: Resources = field(default_factory=dict)
    new: bool = False


class Stage(StrEnum):
    WAITING = "waiting"
    RESTING = "resting"  # waits for a time, or for its last driver to leave: it has a place and asks nothing
    RUNNING = "running"
    LEAVING = "leaving"  # it is giving everything back


@dataclass(frozen=True)
class Ask:
    """What a job wants and has.

    held: workers that it has been granted. holds: workers, spares among them, that it still occupies, though
    it was told to give some back. places: the nodes of its groups, as far as they are known, in the order in
    which the groups would stay. servers: they are there as long as its driver, each with the resources
    `server`. Times in seconds since the epoch.
    """

    id: str
    name: str
    min: int
    max: int
    per_group: int
    worker: Resources
    spares: int = 0
    servers: int = 0
    server: Resources = field(default_factory=dict)
    project: str = "default"
    priority: int = 0
    since: float = 0.0
    stage: Stage = Stage.WAITING
    held: int = 0
    holds: int = 0
    places: tuple[str, ...] = ()
    curve: Curve = field(default_factory=Curve)
    grown_at: float = 0.0
    shrunk_at: float = 0.0

    @cached_property
    def group(self) -> dict[str, float]:
        """What one group needs, on one node."""
        return {name: amount * self.per_group for name, amount in self.worker.items() if amount > 0}

    @cached_property
    def gpus(self) -> float:
        """Per worker."""
        return self.worker.get("GPU", 0.0)

    @cached_property
    def least(self) -> int:
        """Workers that it needs to start, spares among them."""
        return self.min + self.spares

    @cached_property
    def shape(self) -> tuple[tuple[str, float], ...]:
        """What two jobs have in common of which a group of one fits wherever a group of the other does."""
        return tuple(sorted(self.group.items()))

    @cached_property
    def demand(self) -> tuple[object, ...]:
        """What two jobs have in common that take the same part of any cluster."""
        return (self.least, *sorted(self.worker.items()), self.retinue)

    @cached_property
    def retinue(self) -> tuple[object, ...]:
        """What it needs beside its workers and its driver."""
        return (self.servers, *sorted(self.server.items())) if self.servers else ()

    def whole(self, workers: int) -> dict[str, float]:
        """What it takes with so many workers, its driver apart."""
        names = dict.fromkeys((*self.worker, *self.server) if self.servers else self.worker)
        worker, server = self.worker, self.server
        return {n: worker.get(n, 0.0) * workers + server.get(n, 0.0) * self.servers for n in names}

    @property
    def title(self) -> str:
        return f"{self.id} ({self.name})"

    def title_for(self, other: Ask) -> str:
        """As the owner of another job is told: what another project owns is not theirs to see."""
        return self.title if other.project == self.project else STRANGER


@dataclass(frozen=True)
class Quota:
    """The most that the running jobs of a project may hold together; spares and servers count as workers.
    None: no limit."""

    workers: int | None = None
    gpus: int | None = None


@dataclass(frozen=True)
class Project:
    """weight: its part of what several projects compete for, relative to the others."""

    quota: Quota = field(default_factory=Quota)
    weight: float = 1.0


@dataclass(frozen=True)
class Policy:
    """driver: what each active job's driver takes. now: seconds since the epoch."""

    projects: Mapping[str, Project] = field(default_factory=dict)
    driver: Resources = field(default_factory=dict)
    now: float = 0.0

    def project(self, name: str) -> Project:
        return self.projects.get(name) or Project()


@dataclass(frozen=True)
class Grant:
    """So many workers from now on. why: for people, if it is not what the job has already."""

    workers: int
    why: str = ""


@dataclass(frozen=True)
class Preempt:
    """It is to save, give everything back, and queue again."""

    why: str


@dataclass(frozen=True)
class Wait:
    """Why a job gets nothing now; `short_of`: workers that it lacks for its minimum."""

    reason: Reason
    message: str
    short_of: int = 0


Answer = Grant | Preempt | Wait

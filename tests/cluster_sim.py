"""A cluster on which jobs start, follow, leave and end as slowly as they like, under the scheduler alone.

What a job occupies is kept apart from what it was granted, as a driver's processes would be: groups are put
on nodes, and wait for one that has room for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from elastrain.service.scheduling import Ask, Grant, Node, Plan, Policy, Preempt, Project, Stage, plan
from elastrain.service.scheduling.curve import Measured, curve_of, learn
from elastrain.service.scheduling.room import EPSILON, count

ROUND_S = 5.0


@dataclass
class Job:
    ask: Ask
    work: float  # worker-rounds until it ends
    speed: Callable[[int], float] | None = None  # what is measured with so many workers
    lag: int = 0  # rounds until it has done what it was told
    where: list[str | None] = field(default_factory=list)  # of each group; None: not placed yet
    measured: Measured = field(default_factory=dict)
    resizes: int = 0
    preempted: int = 0
    ended: bool = False

    def set(self, **changes: object) -> None:
        self.ask = replace(self.ask, **changes)  # type: ignore[arg-type]


class Sim:
    def __init__(self, nodes: list[Node], projects: dict[str, Project] | None = None, seed: int = 0) -> None:
        self.nodes = nodes
        self.projects = projects or {}
        self.random = random.Random(seed)
        self.jobs: dict[str, Job] = {}
        self.now = 100_000.0
        self.plan = Plan()

    def submit(self, ask: Ask, work: float = 1e9, speed: Callable[[int], float] | None = None) -> Job:
        self.jobs[ask.id] = Job(replace(ask, since=self.now), work, speed)
        return self.jobs[ask.id]

    @property
    def alive(self) -> list[Job]:
        return [job for job in self.jobs.values() if not job.ended]

    def rounds(self, number: int) -> None:
        for _ in range(number):
            self.now += ROUND_S
            for job in self.alive:
                self._live(job)
            asks = [job.ask for job in self.alive]
            self.plan = plan(asks, self.nodes, Policy(self.projects, now=self.now))
            self._obey()
            self.check()

    def check(self) -> None:
        """Nothing was promised twice: not on the whole, and not beyond a quota."""
        total = sum(node.resources["CPU"] for node in self.nodes)
        assert sum(self.cpus(job) for job in self.alive) <= total + EPSILON
        for name, project in self.projects.items():
            used = sum(
                self.occupied(job) + self.servers(job) for job in self.alive if job.ask.project == name
            )
            assert project.quota.workers is None or used <= project.quota.workers, name
        for job in self.alive:
            held, ask = job.ask.held, job.ask
            assert held == 0 or (ask.min <= held <= ask.max and held % ask.per_group == 0), ask

    def occupied(self, job: Job) -> int:
        ask = job.ask
        return max(ask.holds, ask.held + ask.spares) if ask.stage is not Stage.WAITING else 0

    def servers(self, job: Job) -> int:
        return job.ask.servers if job.ask.stage is not Stage.WAITING else 0

    def cpus(self, job: Job) -> float:
        served = self.servers(job) * job.ask.server.get("CPU", 0.0)
        return self.occupied(job) * job.ask.worker["CPU"] + served

    # -- what happens

    def _live(self, job: Job) -> None:
        ask = job.ask
        if job.lag > 0:
            job.lag -= 1
        elif ask.stage is Stage.LEAVING:
            job.where = []
            job.set(stage=Stage.WAITING, held=0, holds=0, places=())
        elif ask.stage is Stage.RUNNING:
            del job.where[(ask.held + ask.spares) // ask.per_group :]
            job.set(holds=ask.held + ask.spares)
        self._place(job)
        if job.ask.stage is Stage.RUNNING:
            ready = sum(at is not None for at in job.where) * ask.per_group
            job.work -= ready if ready >= ask.min else 0
            job.ended = job.work <= 0
            if job.speed is not None and job.lag == 0 and ready:
                job.measured = learn(job.measured, ready, job.speed(ready))
                job.set(curve=curve_of(job.measured))

    def _place(self, job: Job) -> None:
        for index, at in enumerate(job.where):
            free = {node.id: self._free(node) for node in self.nodes}
            best = max(self.nodes, key=lambda node: count(free[node.id], job.ask.group))
            if at is None and count(free[best.id], job.ask.group):
                job.where[index] = best.id
        job.set(places=tuple(at for at in job.where if at is not None))

    def _free(self, node: Node) -> dict[str, float]:
        left = dict(node.resources)
        for job in self.alive:
            for name, amount in job.ask.group.items():
                left[name] = left.get(name, 0.0) - amount * job.where.count(node.id)
        return left

    # -- what the plan says

    def _obey(self) -> None:
        for id, answer in self.plan.answers.items():
            job = self.jobs[id]
            if isinstance(answer, Preempt):
                job.preempted += 1
                job.lag = self.random.randint(0, 4)
                job.set(stage=Stage.LEAVING)
            elif isinstance(answer, Grant) and answer.workers != job.ask.held:
                self._resize(job, answer.workers)

    def _resize(self, job: Job, workers: int) -> None:
        ask = job.ask
        if ask.stage is Stage.WAITING:
            job.set(stage=Stage.RUNNING, held=workers, holds=workers + ask.spares)
        elif workers > ask.held:
            job.resizes += 1
            job.set(held=workers, holds=max(ask.holds, workers + ask.spares), grown_at=self.now)
        else:
            job.resizes += 1
            job.lag = self.random.randint(0, 4)
            job.set(held=workers, shrunk_at=self.now)
        job.where += [None] * ((job.ask.held + ask.spares) // ask.per_group - len(job.where))

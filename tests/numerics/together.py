"""Workers as threads of this process that train to the end: the step as the loop makes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.balance import Balance, Pace
from elastrain.trainers.chunks import Domain, Ownership
from elastrain.trainers.collectives import Group
from elastrain.trainers.cursor import Verdict
from elastrain.trainers.flat import FlatModel
from elastrain.trainers.messages import Json
from elastrain.trainers.reducing import reducer
from elastrain.trainers.replica import Replica, make_module
from elastrain.trainers.samples import SampleReader
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.step import Exchange, compute
from elastrain.trainers.strategies import local_sgd
from elastrain.trainers.strategies.outer import RoundRule
from elastrain.trainers.task import load_task
from trainers.room import Room


class Together:
    """For Tasks without randomness: the threads share one generator."""

    def __init__(self, spec: Json, workers: int) -> None:
        self.spec = parse_spec(spec)
        self.names = [f"w{rank}" for rank in range(workers)]
        self.tasks = [load_task(self.spec.task, self.spec.task_args) for _ in self.names]
        self.readers = [SampleReader(task, self.spec.seed) for task in self.tasks]
        self.replicas = [self._replica(rank) for rank in range(workers)]
        self.verdicts: list[Verdict] = []  # by step
        self.weights: list[dict[str, Any]] = []  # by step, the values of every parameter after it

    def _replica(self, rank: int) -> Replica:
        task, samples = self.tasks[rank], self.readers[rank].size("train")
        return Replica(self.spec, task, FlatModel(make_module(task, self.spec.seed)), samples, 0)

    def train(self) -> Together:
        Room(len(self.names)).all(self._live)
        return self

    def _live(self, group: Group) -> None:
        replica = self.replicas[group.rank]
        own = Ownership.of(replica.model.space, [Domain(w, w, w) for w in self.names])
        replica.begin(own, group.rank)
        exchange, reduce = Exchange(replica, group, own, self.names), reducer(replica, group, own)
        balance = Balance(self.names, Pace())
        part = local_sgd.compute if isinstance(replica.rule, RoundRule) else compute
        while replica.step < replica.plan.total_steps:
            has = balance.deal(replica.count, None, replica.unit)
            replica.at_hand()
            reduction = reduce(has)
            for microbatch in has[group.rank]:
                while not part(replica, self.readers[group.rank], replica.step, microbatch):
                    pass
            reduction.finish()
            verdict = replica.apply(exchange.commit(0, reduction.norms))
            reduction.committed(verdict.applied)
            exchange.gather()
            if group.rank == 0:
                self.verdicts.append(verdict)
                self.weights.append({n: v.clone() for n, v in replica.model.values()})

    @property
    def first(self) -> Replica:
        return self.replicas[0]

    def same_bits(self, other: Together) -> bool:
        """Parameters, buffers and optimizer state, of each of our workers."""
        theirs, whole = state_of(other.first), (0, self.first.model.space.blocks)
        state = other.first.states.read(whole)
        return all(state_of(replica) == theirs and agrees(replica, state) for replica in self.replicas)

    def buffer(self, name: str) -> float:
        return float(self.first.model.buffers.base[name])


def agrees(replica: Replica, state: dict[str, Tensor]) -> bool:
    """Is this what the worker keeps of it as an owner and buddy, and in what it has whole?"""
    space = replica.model.space
    kept = all(
        torch.equal(value, state[slot][space.elements(chunk)])
        for chunk, slots in replica.states.pieces.items()
        for slot, value in slots.items()
    )
    return kept and all(torch.equal(value, state[slot]) for slot, value in replica.gathered.items())


def state_of(replica: Replica) -> dict[str, bytes]:
    """What every worker has of it."""
    tensors = {"params": replica.model.params, **replica.gathered, **replica.model.buffers.base}
    return {name: value.numpy().tobytes() for name, value in tensors.items()}

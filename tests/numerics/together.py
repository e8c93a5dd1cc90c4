"""Workers of this process that train to the end, the step as the loop makes it: threads that meet in a room,
and servers among them; or, one after the other, workers that push whole steps to a server."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.membership.balance import Balance, Pace
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.cursor import Verdict
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.partials import Partial
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.spec.strategies import asynchronous, servers_of
from elastrain.trainers.strategies import local_sgd
from elastrain.trainers.strategies.choice import way_of
from elastrain.trainers.strategies.ledger import Ledger, Task
from elastrain.trainers.strategies.outer import RoundRule
from elastrain.trainers.strategies.served import Push, ServedReplica, record_of
from elastrain.trainers.strategies.shelf import Shelf
from elastrain.trainers.task import load_task
from elastrain.trainers.training import step
from elastrain.trainers.training.replica import Replica, make_module
from elastrain.trainers.training.samples import SampleReader
from numerics.disk import Disk
from trainers.room import Room


class Together:
    """For Tasks without randomness: the threads share one generator. disk: where they begin, and save."""

    def __init__(self, spec: Json, workers: int, disk: Disk | None = None) -> None:
        self.spec, self.disk = parse_spec(spec), disk
        self.way = way_of(self.spec)
        servers = 0 if asynchronous(self.spec.strategy) else servers_of(self.spec.strategy)
        self.domains = [Domain(f"s{n}", f"s{n}", f"s{n}") for n in range(servers)]
        self.domains += [Domain(f"w{n}", f"w{n}", f"w{n}", servers == 0) for n in range(workers)]
        self.names = [d.worker for d in self.domains]
        self.tasks = [load_task(self.spec.task, self.spec.task_args) for _ in self.names]
        self.readers = [SampleReader(task, self.spec.seed) for task in self.tasks]
        self.replicas = [self._replica(rank) for rank in range(len(self.names))]
        self.verdicts: list[Verdict] = []  # by step
        self._weights: list[list[dict[str, Tensor]]] = [[] for _ in self.names]  # by rank and step

    def _replica(self, rank: int) -> Replica:
        task, samples = self.tasks[rank], self.readers[rank].size("train")
        return Replica(self.spec, task, FlatModel(make_module(task, self.spec.seed)), samples, 0)

    def train(self, until: int | None = None) -> Together:
        self.end = until or self.replicas[0].plan.total_steps
        if asynchronous(self.spec.strategy):
            self._push_in_turn()
        else:
            Room(len(self.names)).all(self._live)
        return self

    def _live(self, group: Group) -> None:
        replica, rank, way = self.replicas[group.rank], group.rank, self.way
        own = Ownership.of(replica.model.space, self.domains)
        self._begin(replica, *way.keeps(own, rank))
        exchange, reduce = way.exchange(replica, group, own, self.names), way.reducer(replica, group, own)
        balance = Balance(self.names, Pace(), [r for r, d in enumerate(self.domains) if d.worker[0] == "s"])
        part = local_sgd.compute if isinstance(replica.rule, RoundRule) else step.compute
        while replica.step < self.end:
            has = balance.deal(replica.count, None, replica.unit)
            replica.at_hand()
            reduction = reduce(has)
            for microbatch in has[rank]:
                while not part(replica, self.readers[rank], replica.step, microbatch):
                    pass
            reduction.finish()
            verdict = replica.apply(exchange.commit(0, reduction.norms))
            reduction.committed(verdict.applied)
            exchange.start_gather()()
            self._wrote(rank, replica, verdict)
        if self.disk is not None:
            session: Any = self.disk
            with way.in_common(replica, group, own, session):
                self.disk.save(replica, own, rank, self.names)

    def _begin(self, replica: Replica, own: Ownership, rank: int) -> None:
        if self.disk is None or not self.disk.load(replica, own, rank):
            replica.begin(own, rank)

    def _push_in_turn(self) -> None:
        """Each worker computes from the version that it was dealt, while the others' pushes are applied: each
        is as many versions behind as there are other workers, or as the bound allows."""
        samples, shelf = self.readers[0].size("train"), Shelf[Any]()
        hub: Any = SimpleNamespace(shelf=shelf, changed=contextlib.nullcontext())
        model = FlatModel(make_module(self.tasks[0], self.spec.seed))
        server = ServedReplica(self.spec, self.tasks[0], model, samples, 0, hub)
        own = Ownership.of(model.space, [Domain("s0", "s0", "s0")])
        self._begin(server, own, 0)
        server.kept = server.states.ranges()
        strategy: Any = self.spec.strategy
        ledger = Ledger(server.plan.total_steps, list(server.order), strategy.staleness)
        pushes = dict[Task, Push]()
        for name in self.names:
            ledger.join(name)
        while server.step < self.end:
            for name, task in ledger.deal():
                pushes[task] = self._computed(self.names.index(name), server, task)
            task = min(pushes)
            push, whose = pushes.pop(task), next(n for n, t in ledger.hands.items() if t == task)
            body = torch.cat([t.contiguous().reshape(-1).view(torch.uint8) for t in push.part(server.kept)])
            shelf.put(task, (push.head, body))
            assert ledger.arrive(whose, task.step) and ledger.choose() == task
            scaled = strategy.scale_by_staleness
            record = record_of(push.head, task, whose, server.step, ledger.commit(task), scaled)
            self._wrote(0, server, server.apply(record))
        self.replicas[0] = server
        if self.disk is not None:
            self.disk.save(server, own, 0, ["s0"])

    def _computed(self, rank: int, server: Replica, task: Task) -> Push:
        """A whole step, from what the server has now."""
        replica = self.replicas[rank]
        replica.model.params.copy_(server.model.params)
        for name, base in replica.model.buffers.base.items():
            base.copy_(server.model.buffers.base[name])
        count = replica.plan.count(task.step)
        lanes = replica.rule.lanes
        replica.partial = Partial.of(count, replica.model.space, replica.filling, lanes=lanes)
        for microbatch in range(count):
            step.compute(replica, self.readers[rank], task.step, microbatch)
        return Push.of(replica, task)

    def _wrote(self, rank: int, replica: Replica, verdict: Verdict) -> None:
        if rank == 0:
            self.verdicts.append(verdict)
        self._weights[rank].append({n: v.clone() for n, v in replica.model.values()})

    # ---- afterwards -------------------------------------------------------------------------

    @property
    def first(self) -> Replica:
        return self.replicas[0]

    @property
    def weights(self) -> list[dict[str, Any]]:
        """By step, the values of every parameter after it; of workers that differ, their mean."""
        if self.way.twice:
            return self._weights[0]
        steps = zip(*self._weights, strict=True)
        return [{n: torch.stack([w[n] for w in all_]).mean(0) for n in all_[0]} for all_ in steps]

    def path(self, name: str = "w") -> list[float]:
        """Of a parameter with one element, by step."""
        return [float(weights[name]) for weights in self.weights]

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
        torch.equal(value, state[slot][replica.states.slots[slot].window(*edges(space.elements(chunk)))])
        for chunk, slots in replica.states.pieces.items()
        for slot, value in slots.items()
    )
    return kept and all(torch.equal(value, state[slot]) for slot, value in replica.gathered.items())


def edges(window: slice) -> tuple[int, int]:
    return window.start, window.stop


def state_of(replica: Replica) -> dict[str, bytes]:
    """What every worker has of it."""
    tensors = {"params": replica.model.params, **replica.gathered, **replica.model.buffers.base}
    return {name: value.numpy().tobytes() for name, value in tensors.items()}

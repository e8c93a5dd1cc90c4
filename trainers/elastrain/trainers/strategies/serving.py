"""A server of the asynchronous parameter server: the loop, where a step is the push whose turn it is.

    [ the first server chooses ─▶ a small all-gather: the record ─▶ all apply it ─▶ parameters go out ] ...

Servers are members of a generation of their own kind: they hold chunks as owner and buddy, change hands,
compare, evaluate and save as the members of an all-reduce do. A push that is chosen lies at all of them (see
shelf.py), so the record decides here as well: whoever survives with it can carry it out.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from elastrain.trainers.checkpoints.snapshots import Snapshots
from elastrain.trainers.exchange.collectives import Broken, Group
from elastrain.trainers.exchange.handover import Handover
from elastrain.trainers.loop import Trainer
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.cursor import sum_layers
from elastrain.trainers.numerics.flat import packed
from elastrain.trainers.numerics.layers import due
from elastrain.trainers.spec.strategies import ParameterServer
from elastrain.trainers.strategies.all_reduce import AllReduce
from elastrain.trainers.strategies.ledger import Ledger, Replay, Task
from elastrain.trainers.strategies.served import ServedReplica, record_of
from elastrain.trainers.strategies.shelf import everywhere
from elastrain.trainers.training.formed import Generation
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.samples import SampleReader
from elastrain.trainers.training.session import Session
from elastrain.trainers.training.watch import measure


class ServingTrainer(Trainer):
    """`ledger` is kept by the first server, anew in each generation."""

    replica: ServedReplica

    def __init__(
        self,
        replica: ServedReplica,
        reader: SampleReader,
        session: Session,
        snapshots: Snapshots,
        replay: Replay | None = None,
    ) -> None:
        """replay: the order to repeat."""
        super().__init__(replica, reader, session, snapshots)
        self.way = Serving()
        self.hub, self.replay = replica.hub, replay
        self.ledger: Ledger | None = None
        self.workers: list[str] = []
        self.met: list[str] = []  # servers of the generation before
        self.past: dict[int, list[Tensor]] = {}  # in a replay: version -> what goes out of it, while needed
        assert isinstance(replica.spec.strategy, ParameterServer)
        self.strategy = replica.spec.strategy

    # ---- a generation -----------------------------------------------------------------------

    def form(self, opening: Opening) -> Generation:
        """Servers meet as members do, then agree on what they have of pushes, then hear of their workers."""
        self.workers = [str(m["worker"]) for m in opening.members if not m.get("keeps", True)]
        self.hub.open(opening.generation, self.workers)
        mine = opening.of_keepers()
        self._same_servers(mine)
        generation = super().form(mine)
        self._seal(generation)
        group, rank = generation.group, generation.group.rank
        self._remember(generation)  # the last one broke off, it may be, between an update and this
        self.replica.kept = generation.ownership.held(rank)
        with self.hub.changed:
            self.hub.shelf.stay(tuple(mine.workers) if mine.restore is None else ())
            self.hub.shelf.stay(tuple(mine.workers))
            stored = list(self.hub.shelf.parts)
        entries = group.gather_json(stored)
        common = everywhere([[Task(*task) for task in e] for e in entries])
        with self.hub.changed:
            self.hub.shelf.drop_all_but(common)
        group.barrier()  # a worker that is welcome pushes at once: nobody may still have to tidy up
        if rank == 0:
            self._meet_workers(generation, common)
        return generation

    def _same_servers(self, opening: Opening) -> None:
        """A replay needs versions of the past, which are in no checkpoint and which a new server has not: it
        goes on with the same servers, or begins anew (the coordinator offers no checkpoint from amid it). All
        servers see it alike. Raises Broken."""
        servers, before = opening.workers, self.met
        self.met = servers
        if self.replay is None or opening.step >= len(self.replay):  # it is past what it repeats
            return
        if opening.restore is not None:
            self.past = {}
        elif servers != before:
            self.replica.forget()
            raise Broken("the servers of a replay are others: it begins anew")

    def _meet_workers(self, generation: Generation, stored: list[Task]) -> None:
        bound = self.strategy.staleness
        ledger = Ledger(self.replica.plan.total_steps, list(self.replica.order), bound, self.replay)
        ledger.stored(stored)
        while len(ledger.hands) < len(self.workers):
            worker, head = self._next_word(generation)
            if head["kind"] == "arrived":  # who was welcomed first may be done before the last one says hello
                ledger.arrive(worker, head["step"])
                continue
            task = Task(*head["task"]) if head["task"] is not None else None
            ledger.join(worker, task)
            self.hub.send(worker, {"kind": "welcome", "keep": ledger.hands[worker] is not None})
        self.ledger = ledger

    def _next_word(self, generation: Generation) -> tuple[str, Json]:
        number = generation.number
        said: tuple[str, Json] = self.hub.inbox.take(
            lambda: self.session.check(number), lambda: self.session.waits(number, self.replica.step)
        )
        return said

    def train(self, opening: Opening) -> NoReturn:
        try:
            super().train(opening)
        finally:
            self.hub.leave()

    # ---- one step ---------------------------------------------------------------------------

    def step(self, generation: Generation) -> None:
        """Choose, commit, apply, send."""
        replica, group = self.replica, generation.group
        said = {"log": self.session.log_number, "round": self._round(generation) if group.rank == 0 else None}
        entries = group.gather_json(said)
        decided = entries[0]["round"]
        if (record := decided["record"]) is not None:
            record["log"] = max(e["log"] for e in entries)
            self._measure(generation, record)
            replica.apply(record)
            generation.log = record["log"]
            if group.rank in (0, generation.ownership.buddy[0]):  # one of them may be lost with it
                self.session.committed(generation.number, replica.step, record)
            generation.exchange.gather()
        self._remember(generation)
        for worker, step, version in decided["dealt"]:
            self._send(generation, worker, Task(step, version))

    def _measure(self, generation: Generation, record: Json) -> None:
        """The norms that the spec asks for become part of the record."""
        replica, watch = self.replica, self.replica.spec.watch
        if watch.norms != "none" and due(watch.every_steps, replica.step):
            replica.look(record)
            parts = measure(replica, generation.ownership, generation.group.rank, record)
            record["layers"] = sum_layers([{"layers": p} for p in generation.group.gather_json(parts)])

    def _round(self, generation: Generation) -> Json:
        """What happens next, as the ledger has it; waits until something does."""
        assert self.ledger is not None
        ledger = self.ledger
        while True:
            chosen = ledger.choose()
            record = self._record(ledger, chosen) if chosen is not None else None
            dealt = [(worker, *task) for worker, task in ledger.deal()]
            if record is not None or dealt:
                return {"record": record, "dealt": dealt}
            worker, head = self._next_word(generation)
            if head["kind"] == "arrived":
                ledger.arrive(worker, head["step"])

    def _record(self, ledger: Ledger, task: Task) -> Json:
        """Of the push whose turn it is."""
        whose = ledger.arrived[task]
        staleness = ledger.commit(task)
        with self.hub.changed:
            head = self.hub.shelf.parts[task][0]
        scaled = self.strategy.scale_by_staleness
        return record_of(head, task, whose or "lost", self.replica.step, staleness, scaled)

    def _send(self, generation: Generation, worker: str, task: Task) -> None:
        """The parameters of a version go to one worker: our own chunks, and from the first server buffers."""
        head = {"kind": "task", "task": task, "buffers": generation.group.rank == 0}
        past = self.past.get(task.version)
        assert past is not None or task.version == self.replica.step, f"version {task.version} is forgotten"
        self.hub.send(worker, head, past if past is not None else self._outgoing(generation))

    def _remember(self, generation: Generation) -> None:
        """A replay keeps each version for as long as a task that is not applied is computed from it."""
        if self.replay is not None:
            needs, version = self.replay.needs, self.replica.step
            self.past = {old: tensors for old, tensors in self.past.items() if needs(old, version)}
            if version not in self.past and needs(version, version):
                self.past[version] = self._outgoing(generation)

    def _outgoing(self, generation: Generation) -> list[Tensor]:
        replica, rank = self.replica, generation.group.rank
        space = replica.model.space
        values = [replica.model.params[space.elements(c)] for c in generation.ownership.owned(rank)]
        return [*(_buffers(replica) if rank == 0 else []), torch.cat(values)]

    # ---- the end ----------------------------------------------------------------------------

    def _idle(self, generation: Generation) -> None:
        """The workers have nothing left to do either."""
        if generation.group.rank == 0:
            for worker in self.workers:
                self.hub.send(worker, {"kind": "rest", "step": self.replica.step})
        super()._idle(generation)


class Serving(AllReduce):
    """Servers hand over as the members of an all-reduce do. The order goes first: a new one that holds a
    chunk counts as a survivor, should this generation break, and may be the only one by then."""

    def hand_over(
        self,
        replica: Replica,
        opening: Opening,
        group: Group,
        ownership: Ownership,
    ) -> Handover | None:
        assert replica.order is not None
        lengths = group.gather_json(len(replica.order))
        if lacking := [rank for rank, length in enumerate(lengths) if length != opening.step]:
            first = next(rank for rank in range(group.world) if rank not in lacking)
            order = group.gather_json(replica.order if group.rank == first else None)[first]
            replica.order = [Task(*task) for task in order]
        return super().hand_over(replica, opening, group, ownership)


def _buffers(replica: ServedReplica) -> list[Tensor]:
    """All of them as bytes."""
    base = replica.model.buffers.base
    return [packed(list(base.values()))] if base else []

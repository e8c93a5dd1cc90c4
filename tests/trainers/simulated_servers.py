"""Parameter servers and their workers without processes: every word and every death at a chosen moment.

A value of a block is a digest of how it came about, so whoever computes from wrong parameters, applies twice
or loses something gets other values for ever.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from elastrain.trainers.strategies.ledger import Ledger, Replay, Task
from elastrain.trainers.strategies.shelf import Delivery, Shelf, everywhere

Values = dict[int, int]  # block -> digest


def gradient(value: int, step: int) -> int:
    return hash(("gradient", value, step))


def updated(value: int, push: int) -> int:
    return hash(("update", value, push))


def by_the_order(order: Sequence[Task], blocks: int) -> Values:
    """What has to come out, computed by one that does nothing but follow the order."""
    versions = [dict.fromkeys(range(blocks), 0)]
    for task in order:
        now, base = versions[-1], versions[task.version]
        versions.append({b: updated(now[b], gradient(base[b], task.step)) for b in now})
    return versions[-1]


@dataclass(eq=False)
class Server:
    name: str
    blocks: tuple[int, ...] = ()  # it owns the first, and is buddy for the others
    order: list[Task] = field(default_factory=list)
    values: Values = field(default_factory=dict)
    history: dict[int, Values] = field(default_factory=dict)  # version -> values, in a replay
    shelf: Shelf[Values] = field(default_factory=Shelf)

    def apply(self, task: Task, remember: bool) -> None:
        push = self.shelf.take(task)
        self.values = {b: updated(v, push[b]) for b, v in self.values.items()}
        self.order.append(task)
        if remember:
            self.history[len(self.order)] = dict(self.values)


@dataclass(eq=False)
class Worker:
    name: str
    task: Task | None = None
    base: Values = field(default_factory=dict)
    delivery: Delivery | None = None

    def push(self) -> Values:
        assert self.task is not None
        return {b: gradient(v, self.task.step) for b, v in self.base.items()}


@dataclass(eq=False)
class World:
    """`live` until every step is applied. A kind of fault happens with the given chance at each turn."""

    rng: random.Random
    total: int
    servers_wanted: int
    workers_wanted: int
    bound: int | None = None
    replay: list[Task] | None = None
    faults: float = 0.1
    most: int = 40  # faults: a replay begins anew with each server that dies, and would never end
    happened: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._named = self.happened_in_all = 0
        self.servers: list[Server] = []
        self.workers: list[Worker] = []
        self._begin_anew()
        self.open()

    def _begin_anew(self) -> None:
        self.servers = [Server(self._name("s")) for _ in range(self.servers_wanted)]
        for server in self.servers:
            server.values = dict.fromkeys(range(self.servers_wanted), 0)
            server.history = {0: dict(server.values)}

    def _name(self, kind: str) -> str:
        self._named += 1
        return f"{kind}{self._named}"

    def _count(self, kind: str) -> None:
        self.happened[kind] = self.happened.get(kind, 0) + 1

    # ---- generations ------------------------------------------------------------------------

    def open(self) -> None:
        """Whoever is there meets: servers agree on what they have, workers say what they have in hand."""
        while len(self.workers) < self.workers_wanted:
            self.workers.append(Worker(self._name("w")))
        known = max(self.servers, key=lambda s: len(s.order)).order
        for server in self.servers:  # members are never more than one record apart
            assert len(known) - len(server.order) <= 1 and known[: len(server.order)] == server.order
            if len(server.order) < len(known):
                server.apply(known[-1], self.replay is not None)
        self._replace_servers()
        known = self.servers[0].order
        names = tuple(s.name for s in self.servers)
        for place, server in enumerate(self.servers):
            server.shelf.stay(names)
            server.blocks = (place, (place - 1) % len(names)) if len(names) > 1 else (0,)
        common = everywhere([list(s.shelf.parts) for s in self.servers])
        for server in self.servers:
            server.shelf.drop_all_but(common)
        self.ledger = Ledger(self.total, list(known), self.bound, self.replay and Replay(self.replay))
        self.ledger.stored(common)
        self.words: list[tuple[str, int]] = []  # on their way to the first server
        for worker in self.workers:
            self.ledger.join(worker.name, worker.task)
            worker.delivery = None
            if self.ledger.hands[worker.name] is None:
                worker.task = None
        self.round()

    def _replace_servers(self) -> None:
        """A new server gets everything from those that are left. In a replay it lacks what older versions
        were: everybody begins anew."""
        missing = self.servers_wanted - len(self.servers)
        if missing and self.replay is not None:
            self._count("begun anew")
            self._begin_anew()
            return
        for _ in range(missing):
            source = self.servers[0]
            self.servers.append(Server(self._name("s"), order=list(source.order), values=dict(source.values)))

    # ---- one turn ---------------------------------------------------------------------------

    def round(self, dies: int | None = None) -> None:
        """The first server decides; all carry it out, but for those from `dies` on, who never hear of it."""
        task = self.ledger.choose()
        if task is not None:
            self.ledger.commit(task)
        dealt = self.ledger.deal()
        for place, server in enumerate(self.servers):
            if task is not None and (dies is None or place < dies):
                server.apply(task, self.replay is not None)
        if dies is not None:
            return
        for name, given in dealt:
            worker = next(w for w in self.workers if w.name == name)
            worker.task, worker.delivery, worker.base = given, None, {}
            for server in self.servers:
                values = server.values
                if self.replay is not None:
                    values = server.history[given.version]
                else:
                    assert given.version == len(server.order)
                worker.base[server.blocks[0]] = values[server.blocks[0]]

    def turn(self) -> None:
        if self.happened_in_all < self.most and self.rng.random() < self.faults:
            self._fault()
        elif self.ledger.choose() is not None and self.rng.random() < 0.5:
            self.round()
        elif self.words and self.rng.random() < 0.5:
            worker, step = self.words.pop(self.rng.randrange(len(self.words)))
            self.ledger.arrive(worker, step)
            if self.rng.random() < 0.3:
                self._count("doubled word")
                self.words.append((worker, step))
            self.round()
        else:
            self._work(self.rng.choice(self.workers))

    def _work(self, worker: Worker) -> None:
        """One message more of its push gets through."""
        if worker.task is None:
            return
        if worker.delivery is None:
            worker.delivery = Delivery(worker.task, {s.name for s in self.servers})
        if not worker.delivery.missing:
            return
        server = next(s for s in self.servers if s.name in worker.delivery.missing)
        server.shelf.put(worker.task, worker.push())
        if self.rng.random() < 0.2:
            self._count("doubled push")
            server.shelf.put(worker.task, worker.push())
        if worker.delivery.acknowledged(server.name, worker.task):
            self.words.append((worker.name, worker.task.step))

    def _fault(self) -> None:
        self.happened_in_all += 1
        kind = self.rng.choice(["worker", "server", "server amid a commit", "everybody else"])
        self._count(kind)
        match kind:
            case "worker":
                self.workers.remove(self.rng.choice(self.workers))
            case "everybody else":
                self.workers = self.workers[: self.rng.randrange(len(self.workers))]
            case "server" if self.servers_wanted > 1:
                self.servers.remove(self.rng.choice(self.servers))
            case "server amid a commit" if self.servers_wanted > 1:
                self.round(dies=self.rng.randrange(1, len(self.servers)))
                self.servers.remove(self.rng.choice(self.servers))
        self.open()

    @property
    def order(self) -> list[Task]:
        return self.servers[0].order

    @property
    def staleness(self) -> list[int]:
        return [version - task.version for version, task in enumerate(self.order)]

    def live(self) -> World:
        for _ in range(100 * self.total):
            if len(self.order) == self.total:
                return self
            self.turn()
        raise AssertionError(f"stuck: {self.ledger}, words {self.words}")

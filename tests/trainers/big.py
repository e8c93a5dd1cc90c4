"""What a join, a leave and a death cost the coordinator of a thousand workers: messages, bytes, machine time.

The machine alone, fed with what real workers would say; the network and the workers' own work are not in it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from elastrain.trainers import messages as m
from elastrain.trainers.chunks import Domain, FlatSpace, Ownership
from elastrain.trainers.membership import Machine, Phase, Policy
from elastrain.trainers.messages import Json, Report

PER_NODE = 8
BLOCK = 64 * 1024  # elements
CURSOR = {"step": 0, "updates": 0, "counts": {"common": 0, "odd": {}}, "chain": "0" * 32, "metrics": {}}


@dataclass
class Cost:
    events: int = 0
    orders: Counter[str] = field(default_factory=Counter)  # messages to workers, by kind
    seconds: float = 0.0
    slowest_ms: float = 0.0  # of a single event
    opening_bytes: int = 0

    def __str__(self) -> str:
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(self.orders.items()))
        return (
            f"{self.events:6} words heard; {told or 'none'} sent; {1e3 * self.seconds:7.1f} ms of machine "
            f"time, {self.slowest_ms:6.1f} ms for one at most; opening: {self.opening_bytes / 1024:.0f} KiB"
        )


class Big:
    """A machine and as many workers as wanted, which answer at once."""

    def __init__(self, workers: int, parameters: int = 1_000_000_000) -> None:
        self.space = FlatSpace((), -(-parameters // BLOCK) * BLOCK, BLOCK)
        self.machine = Machine(Policy(min=1, target=workers))
        self.cost = Cost()
        self.asked: list[m.Action] = []
        self.held: dict[str, tuple[m.Range, ...]] = {}
        self.clock = 0.0

    def feed(self, event: m.Event) -> None:
        started = time.process_time()
        actions = self.machine.handle(event)
        seconds = time.process_time() - started
        self.cost.events += 1
        self.cost.seconds += seconds
        self.cost.slowest_ms = max(self.cost.slowest_ms, 1e3 * seconds)
        for action in actions:
            self._count(action)
        self.asked += actions

    def _count(self, action: m.Action) -> None:
        match action:
            case m.Open(_, members):
                self.cost.orders["open"] += len(members)
                opening = {**asdict(action), "members": [self._member(w) for w in members]}
                self.cost.opening_bytes = len(json.dumps(opening, separators=(",", ":")))
            case m.Halt(_, workers, _) | m.Dismiss(workers, _):
                self.cost.orders[type(action).__name__.lower()] += len(workers)
            case m.Command():
                self.cost.orders["command"] += len(self.machine.members)

    def _member(self, worker: str) -> Json:
        known = self.machine.roster.workers[worker]
        address = {"host": "10.0.10.10", "port": 40000}
        return {"worker": worker, "group": known.group, "node": known.node, "address": address}

    def take(self, kind: type) -> list[m.Action]:
        found = [a for a in self.asked if isinstance(a, kind)]
        self.asked.clear()
        return found

    # ---- what workers do --------------------------------------------------------------------

    def tick(self) -> None:
        self.clock += 0.1
        self.feed(m.Tick(self.clock))

    def start(self, group: m.StartGroup) -> None:
        for worker in group.workers:
            self.feed(m.Registered(worker, f"n{int(worker[1:]) // PER_NODE}", 1, {}))
            self.feed(m.Warm(worker, self.space.blocks))

    def seal(self) -> None:
        """Everyone forms what was opened, and trains a step."""
        opening = next(a for a in self.take(m.Open) if isinstance(a, m.Open))
        workers = self.machine.roster.workers
        own = Ownership.of(
            self.space, [Domain(w, workers[w].group, workers[w].node) for w in opening.members]
        )
        self.held = {w: tuple(own.held(rank)) for rank, w in enumerate(opening.members)}
        for worker in opening.members:
            self.feed(m.Sealed(worker, opening.generation, opening.step))
        assert self.machine.phase is Phase.STEADY

    def step(self) -> None:
        generation, at = self.machine.generation, self.machine.progress.step
        for rank, worker in enumerate(generation.ids):
            self.feed(m.Began(worker, at, rank))
        record = {"step": at, "seconds": {w: [1, 0.1] for w in generation.ids}}
        for worker in generation.ids[:2]:
            self.feed(m.Committed(worker, generation.number, at + 1, record))

    def beat(self) -> None:
        for worker in self.machine.members:
            self.feed(m.Beat(worker))

    def report(self, why: str, workers: Iterable[str]) -> None:
        at, number = self.machine.progress.step, self.machine.generation.number
        cursor = {**CURSOR, "step": at}
        for worker in workers:
            held = self.held[worker]
            self.feed(m.Reported(worker, Report(number, why, at, cursor, None, held, True)))  # type: ignore[arg-type]


def measure(workers: int) -> dict[str, Cost]:
    """The cost of each kind of change."""
    costs: dict[str, Cost] = {}
    big = Big(workers)

    def done(name: str) -> None:
        costs[name], big.cost = big.cost, Cost()

    big.tick()
    for group in big.take(m.StartGroup):
        big.start(group)  # type: ignore[arg-type]
    big.feed(m.Scale(workers, workers))
    big.seal()
    done("start, first generations of some included")
    if len(big.machine.members) < workers:
        big.report("boundary", big.machine.members)
        big.seal()
    big.cost = Cost()
    big.step()
    done("a step")
    big.beat()
    done("a beat of everyone")
    big.tick()
    done("a tick")

    big.feed(m.Scale(workers, workers + 1))
    big.start(big.take(m.StartGroup)[0])  # type: ignore[arg-type]
    big.report("boundary", big.machine.members)
    big.seal()
    done("a join")

    big.step()
    big.cost = Cost()
    big.feed(m.Scale(workers, workers))
    big.report("boundary", big.machine.members)
    big.seal()
    done("a leave")

    big.step()
    big.cost = Cost()
    victim, *others = big.machine.members[5:] + big.machine.members[:5]
    big.feed(m.Scale(1, workers))
    big.feed(m.Closed(victim))
    big.report("broken", others)
    big.seal()
    done("a death")
    return costs


def main(workers: int = 1000) -> None:
    print(f"{workers} workers, {PER_NODE} on a node, 1e9 parameters:")
    for name, cost in measure(workers).items():
        print(f"  {name:42} {cost}")

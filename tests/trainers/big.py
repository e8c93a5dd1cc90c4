"""What a join, a leave and a death cost the coordinator of many workers: messages, bytes, processor time.

The coordinator's part as it is, fed with the words of workers as they come over the line, and everything
that it answers packed as it goes out. The network and the workers' own work are not in it; bench/growth.py
measures a whole driver with real connections.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from elastrain.trainers.coordination.coordinator import parse
from elastrain.trainers.coordination.opener import Opener
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.balance import Pace
from elastrain.trainers.membership.machine import Machine, Phase, Policy
from elastrain.trainers.membership.messages import Json, Report
from elastrain.trainers.membership.wire import encode
from elastrain.trainers.numerics.chunks import Domain, FlatSpace, Ownership

PER_NODE = 8
BLOCK = 64 * 1024  # elements
CURSOR = {"step": 0, "updates": 0, "counts": {"common": 0, "odd": {}}, "chain": "0" * 32, "metrics": {}}


@dataclass
class Cost:
    heard: int = 0  # words of workers
    heard_bytes: int = 0
    orders: Counter[str] = field(default_factory=Counter)  # messages to workers, by kind
    sent_bytes: int = 0
    largest: int = 0  # bytes of one message
    seconds: float = 0.0
    slowest_ms: float = 0.0  # for a single word

    def row(self) -> str:
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(self.orders.items())) or "nothing"
        return (
            f"{self.heard:6} heard {self.heard_bytes / 1024:7.0f} KiB; {1e3 * self.seconds:7.1f} ms, "
            f"{self.slowest_ms:6.1f} ms for one at most; sent {self.sent_bytes / 1024:7.0f} KiB, "
            f"{self.largest / 1024:5.1f} KiB for one at most: {told}"
        )


class Tally:
    """What the opener asks for: how fast everyone is known to be."""

    pace = Pace()


class Big:
    """A coordinator without a network, and as many workers as wanted, which answer at once."""

    def __init__(self, workers: int, parameters: int = 1_000_000_000) -> None:
        self.space = FlatSpace((), -(-parameters // BLOCK) * BLOCK, BLOCK)
        self.machine = Machine(Policy(min=workers, target=workers))
        self.addresses: dict[str, Json] = {}  # as the coordinator has them
        nothing: Any = None
        shell: Any = self
        self.opener = Opener(self.machine, shell, nothing, Tally(), self.decide, nothing, nothing)  # type: ignore[arg-type]
        self.cost = Cost()
        self.asked: list[m.Action] = []
        self.held: dict[str, tuple[m.Range, ...]] = {}
        self.clock = 0.0

    # ---- the coordinator --------------------------------------------------------------------

    def hear(self, worker: str, kind: str, **fields: Any) -> None:
        """A word as it comes over the line."""
        text = json.dumps({"kind": kind, **fields}, separators=(",", ":"))
        self.cost.heard += 1
        self.cost.heard_bytes += len(text)
        started = time.process_time()
        event = parse(worker, json.loads(text))
        assert event is not None
        self.decide(event)
        self._spent(started)

    def feed(self, event: m.Event) -> None:
        """What is no worker's word."""
        started = time.process_time()
        self.decide(event)
        self._spent(started)

    def _spent(self, started: float) -> None:
        seconds = time.process_time() - started
        self.cost.seconds += seconds
        self.cost.slowest_ms = max(self.cost.slowest_ms, 1e3 * seconds)

    def decide(self, event: m.Event) -> None:
        for action in self.machine.handle(event):
            self.asked.append(action)
            match action:
                case m.Open(_, _, step, restore=True):
                    self.decide(m.Restored(step))
                    self.opener.tell(action, step, {"prefix": "", "manifest": None})
                case m.Open():
                    self.opener.tell(action, action.step, None)
                case m.Halt(generation, workers, why):
                    self.tell(workers, {"kind": "halt", "generation": generation, "why": why})
                case m.Dismiss(workers, why):
                    self.tell(workers, {"kind": "dismiss", "why": why})
                case m.Command(number, kind):
                    self.tell(self.machine.members, {"kind": "command", "number": number, "command": kind})

    def tell(self, workers: Iterable[str], message: Json) -> None:
        """What the real one gives to the kernel, once for each worker."""
        size, count = len(encode(message)), len([*workers])
        self.cost.orders[message["kind"]] += count
        self.cost.sent_bytes += size * count
        self.cost.largest = max(self.cost.largest, size)

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
            number = int(worker[1:])
            node = number // PER_NODE
            self.addresses[worker] = {"host": f"10.0.{node // 250}.{node % 250}", "port": 40000 + number}
            self.feed(m.Registered(worker, f"n{node}", 1, self.addresses[worker]))
            self.feed(m.Warm(worker, self.space.blocks))

    def seal(self) -> None:
        """Everyone forms what was opened."""
        opening = next(a for a in self.take(m.Open) if isinstance(a, m.Open))
        workers = self.machine.roster.workers
        own = Ownership.of(
            self.space, [Domain(w, workers[w].group, workers[w].node) for w in opening.members]
        )
        self.held = {w: tuple(own.held(rank)) for rank, w in enumerate(opening.members)}
        for worker in opening.members:
            self.hear(worker, "sealed", generation=opening.generation, step=opening.step)
        assert self.machine.phase is Phase.STEADY

    def step(self) -> None:
        generation, at = self.machine.generation, self.machine.progress.step
        for rank, worker in enumerate(generation.ids):
            self.hear(worker, "began", step=at, microbatch=rank)
        record = {
            "step": at,
            "log": 0,
            "seconds": {w: [1, 0.123456] for w in generation.ids},
            "workers": list(generation.ids),
        }
        for worker in generation.ids[:2]:
            self.hear(worker, "committed", generation=generation.number, step=at + 1, record=record)

    def beat(self) -> None:
        for worker in self.machine.members:
            self.hear(worker, "beat")

    def report(self, why: Any, workers: Iterable[str]) -> None:
        at, number = self.machine.progress.step, self.machine.generation.number
        for worker in workers:
            cursor, held = {**CURSOR, "step": at}, self.held[worker]
            report = Report(number, why, at, cursor, None, held, True, layout=number)
            self.hear(worker, "report", report=asdict(report))


def measure(workers: int) -> dict[str, Cost]:
    """The cost of each kind of change."""
    costs: dict[str, Cost] = {}
    big = Big(workers)

    def done(name: str) -> None:
        costs[name], big.cost = big.cost, Cost()

    big.tick()
    for group in big.take(m.StartGroup):
        big.start(group)  # type: ignore[arg-type]
    big.seal()
    done("start")
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

    if workers > 1:
        big.step()
        big.cost = Cost()
        victim = big.machine.members[workers // 2]
        big.feed(m.Scale(1, workers))
        big.feed(m.Closed(victim))
        big.report("broken", [w for w in big.machine.generation.ids if w != victim])
        big.seal()
        done("a death")
    return costs


def main(*sizes: int) -> None:
    for workers in sizes or (1, 10, 100, 1000):
        print(f"{workers} workers, {PER_NODE} on a node, 1e9 parameters:")
        for name, cost in measure(workers).items():
            print(f"  {name:18} {cost.row()}")

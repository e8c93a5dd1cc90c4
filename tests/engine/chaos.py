"""The whole engine under fire: a seeded run in which something happens to the workers every few steps.

    python -m engine.chaos --minutes 5 --seed 1 --workers 4 --strategy int8    (in tests/; or `make chaos`)

Afterwards an undisturbed run of as many steps must give the same bits, and `checks` must find nothing. An
asynchronous run is compared with one that repeats its order; of gossip no bits are promised.
The draw is seeded; what it hits depends on how fast the machine is just then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastrain.trainers.coordination.attempt import Outcome
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.membership.roster import CRASH_LOOP, State
from engine.checks import check, check_epochs, check_nobody_is_left, check_samples, check_steps
from engine.harness import Run, run, toy
from engine.rough_launcher import RoughLauncher

Strike = Callable[[random.Random], None]

STRATEGIES: dict[str, Json] = {
    "all_reduce": {},
    "moments": {"aggregate": "moments"},
    "bf16": {"compression": "bf16"},
    "int8": {"compression": "int8"},
    "topk": {"compression": {"name": "topk", "fraction": 0.1}},
    "powersgd": {"compression": {"name": "powersgd", "rank": 2}},
    "local_sgd": {"strategy": {"name": "local_sgd", "local_steps": 2, "outer": "diloco"}},
    "parameter_server": {"strategy": {"name": "parameter_server", "servers": 3}},
    "bounded": {"strategy": {"name": "parameter_server", "staleness": 2, "servers": 2}},
    "asynchronous": {"strategy": {"name": "parameter_server", "staleness": None, "servers": 2}},
    "gossip": {"strategy": {"name": "gossip", "graph": "ring"}},
}
SAMPLES = 300
HANG_S = 120.0  # nobody may need longer for one step: evictions take 5 s, starts 2 s
DEADLY = 2  # deaths between two accepted steps; three in a row at one step are, rightly, the user's fault


def witness(**fields: Any) -> Json:
    """Evaluations, checkpoints, dropout, BatchNorm, a short last batch, samples on the record."""
    return toy(
        task="engine.tasks.witness:Witness",
        task_args={"samples": SAMPLES, "sleep_s": 0.002},
        evaluate={"every_steps": 15, "at_end": False},
        checkpoint={"every_steps": 10},
        **fields,
    )


@dataclass
class Chaos(Run):
    """Strikes for `seconds`, or until so many `generations` have formed, then pauses; or until the last step.

    A count of generations is as much on a slow machine as on a fast one; seconds are not.
    """

    seed: int = 0
    seconds: float | None = None
    generations: int | None = None
    heartbeat_s: float | None = 1.0
    counts: Counter[str] = field(default_factory=Counter)
    records: list[Json] = field(default_factory=list)

    async def _run(self) -> Outcome:
        running = asyncio.ensure_future(super()._run())
        self._side: set[asyncio.Future[None]] = set()
        havoc = self._beside(self._havoc(random.Random(self.seed)))
        await asyncio.wait([running, havoc], return_when=asyncio.FIRST_COMPLETED)
        if havoc.done() and havoc.exception() is not None:
            running.cancel()
            await asyncio.wait([running])
            havoc.result()
        outcome = await running
        for task in self._side:
            task.cancel()
        return outcome

    def _beside(self, doing: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(doing)
        self._side.add(task)
        task.add_done_callback(self._side.discard)
        return task

    # ---- the draw ---------------------------------------------------------------------------

    async def _havoc(self, draw: random.Random) -> None:
        self._listen()
        strikes = self.strikes()
        since = time.monotonic()
        while not self._enough(time.monotonic() - since):
            await self._some_steps(draw)
            draw.choices(list(strikes), list(strikes.values()))[0](draw)
        self.attempt.finish("paused")

    def _enough(self, passed_s: float) -> bool:
        if self.generations is not None:
            return len(self.of_kind("generation")) > self.generations and self.counts["kills"] > 0
        return self.seconds is not None and passed_s >= self.seconds

    def strikes(self) -> dict[Strike, int]:
        """What may happen, and how often in a hundred or so."""
        return {
            self._kill: 26,
            self._kill_several: 8,
            self._kill_all: 2,
            self._kill_a_starting_one: 5,
            self._stop_for_a_moment: 8,
            self._stop_until_evicted: 10,
            self._notice: 12,
            self._scale: 22,
            self._checkpoint: 5,
        }

    def _listen(self) -> None:
        """See every accepted record."""
        self.accepted, self.deadly = 0, Counter[int]()
        inner = self.attempt.tally.accepted

        def accepted(record: Json, *more: Any) -> None:
            self.accepted += 1
            self.records.append(record)
            inner(record, *more)

        self.attempt.tally.accepted = accepted  # type: ignore[method-assign]

    async def _some_steps(self, draw: random.Random) -> None:
        """Wait for a few steps; sometimes only for a moment, to strike again while it re-forms."""
        if draw.random() < 0.3 and self.deadly[self.accepted] < DEADLY:
            await asyncio.sleep(draw.uniform(0.0, 0.3))
            return
        goal, since = self.accepted + draw.randint(1, 12), time.monotonic()
        while self.accepted < goal:
            await asyncio.sleep(draw.uniform(0.0, 0.02))
            if time.monotonic() - since > HANG_S:
                raise TimeoutError(f"no step for {HANG_S:.0f} s\n{self.state()}")

    # ---- strikes ----------------------------------------------------------------------------

    def _kill(self, draw: random.Random) -> None:
        self._end(self._members(draw)[:1])

    def _kill_several(self, draw: random.Random) -> None:
        members = self._members(draw)
        self._end(members[: draw.randint(1, max(1, len(members) - 1))])

    def _kill_all(self, draw: random.Random) -> None:
        self._end(self._members(draw))

    def _kill_a_starting_one(self, draw: random.Random) -> None:
        """No slot may fail five times in a row without a step: that is, rightly, the end of a job."""
        roster = self.attempt.machine.roster
        early = [
            w.id
            for w in roster.workers.values()
            if w.state in (State.STARTING, State.READY)
            and roster.slots[roster.groups[w.group].slot].failures < CRASH_LOOP - 2
        ]
        self._end(draw.sample(early, min(1, len(early))))

    def _end(self, workers: list[str]) -> None:
        workers = [w for w in workers if not self._would_be_blamed(w)]
        if workers and self.deadly[self.accepted] < DEADLY:
            self.deadly[self.accepted] += 1
            for worker in workers:
                self._signal(worker, signal.SIGKILL)
                self.counts["kills"] += 1

    def _would_be_blamed(self, worker: str) -> bool:
        """In an asynchronous run others get on while a step is computed for the third time."""
        machine = self.attempt.machine
        blame, began = machine.fleet.blame, machine.roster.workers[worker].began
        return len(blame.vanished) >= DEADLY and began is not None and began[0] == blame.vanished_step

    def _notice(self, draw: random.Random) -> None:
        """SIGTERM, as a node that is to be shut down sends it; sometimes to all."""
        members = self._members(draw)
        for worker in members[: draw.randint(1, max(1, len(members)))]:
            self.counts["notices"] += self._signal(worker, signal.SIGTERM)

    def _stop_for_a_moment(self, draw: random.Random) -> None:
        for worker in self._members(draw)[:1]:
            self._beside(self._stop(worker, draw.uniform(0.1, 2.0), "pauses"))

    def _stop_until_evicted(self, draw: random.Random) -> None:
        """The kill that follows comes late, so that an evicted worker wakes up and acts."""
        assert isinstance(self.launcher, RoughLauncher)
        self.launcher.kill_after_s = draw.choice([0.0, 0.5, 2.0])
        for worker in self._members(draw)[:1]:
            self._beside(self._stop(worker, HANG_S, "stops"))

    async def _stop(self, worker: str, at_most_s: float, what: str) -> None:
        known = self.attempt.machine.roster.workers[worker]
        if self._signal(worker, signal.SIGSTOP):
            self.counts[what] += 1
            await self._until(lambda: known.state is State.LOST, at_most_s)
            self._signal(worker, signal.SIGCONT)

    async def _until(self, happened: Callable[[], bool], at_most_s: float) -> None:
        end = time.monotonic() + at_most_s
        while not happened() and time.monotonic() < end:
            await asyncio.sleep(0.01)

    def _scale(self, draw: random.Random) -> None:
        self.attempt.scale(1, draw.randint(1, self.workers[1]))

    def _checkpoint(self, _: random.Random) -> None:
        self.counts["requests"] += 1
        self.attempt.checkpoint(self.counts["requests"])

    def _members(self, draw: random.Random) -> list[str]:
        members = [w.id for w in self.attempt.machine.generation.members if w.state is State.ACTIVE]
        return draw.sample(members, len(members))

    def _signal(self, worker: str, number: signal.Signals) -> bool:
        try:
            os.kill(self.launcher.pid(worker), number)
        except ProcessLookupError:
            return False
        return True

    # ---- afterwards -------------------------------------------------------------------------

    def numbers(self) -> dict[str, int]:
        lost = [e["data"]["cause"] for e in self.events("worker.lost")]
        return {
            "steps": self.steps()[-1],
            "redone": len(self.steps()) - len(set(self.steps())),
            "kills": self.counts["kills"],
            "stops": self.counts["pauses"] + self.counts["stops"],
            "evicted": lost.count("no heartbeat"),
            "notices": self.counts["notices"],
            "joins": len(self.events("worker.joined")),
            "leaves": len(self.events("worker.left")),
            "generations": len(self.of_kind("generation")),
            "rollbacks": len(self.events("rollback")),
        }

    def summary(self) -> str:
        return ", ".join(f"{name} {number}" for name, number in self.numbers().items())


def under_fire(
    folder: Path,
    workers: int,
    seed: int,
    seconds: float = 30.0,
    kind: type[Chaos] = Chaos,
    spares: int = 0,
    generations: int | None = None,
    strategy: str = "all_reduce",
) -> Chaos:
    """A disturbed run of so many seconds, or generations, and everything that must hold after it."""
    sizes = {"min": 1, "max": 8, "spares": spares}
    spec = witness(steps=1_000_000, workers=sizes, **STRATEGIES[strategy])
    chaos = kind(folder / "many", spec, (1, workers), seed=seed, seconds=seconds, generations=generations)
    limit_s = seconds + HANG_S if generations is None else generations * HANG_S
    try:
        chaos.go(limit_s)
    finally:
        lines = [json.dumps(fact) for fact in chaos.facts]
        (folder / "many" / "facts.jsonl").write_text("\n".join(lines))
    assert chaos.outcome is not None and chaos.outcome.outcome == "paused", chaos.outcome
    compare(chaos, folder, spec | {"steps": chaos.outcome.step}, limit_s + seconds)
    return chaos


def compare(chaos: Chaos, folder: Path, spec: Json, limit_s: float) -> None:
    """With an undisturbed run of as many steps, as far as the strategy promises it. spec: of that run."""
    strategy = spec.get("strategy", {})
    name, asynchronous = strategy.get("name"), strategy.get("staleness", 0) != 0
    if asynchronous:  # it may have been paused before a step counted that comes earlier in the plan
        shutil.copytree(folder / "many" / "objects", folder / "one" / "objects")
        most = 1 + max(record["task"][0] for record in chaos.records)
        strategy = {**strategy, "staleness": None, "replay": f"job@{spec['steps']}"}
        spec = spec | {"strategy": strategy, "steps": most, "checkpoint": {"every_steps": spec["steps"]}}
    alone = Run(folder / "one", spec, (1, 1), job="again" if asynchronous else "job").go(limit_s)
    if name == "gossip":
        check_steps(chaos, alone.steps()[-1])
        assert chaos.manifest()["sample_chain"] == alone.manifest()["sample_chain"]
        check_nobody_is_left(chaos)
    else:
        check(chaos, alone, chaos.outcome.step)  # type: ignore[union-attr]
    if name == "local_sgd":  # a run of a replica is read in several pieces
        check_epochs(alone, SAMPLES)
        return
    by_the_plan = alone
    if asynchronous:
        by_the_plan = run(folder / "plan", witness(steps=most), timeout_s=limit_s)
    check_samples(chaos, chaos.records, by_the_plan, SAMPLES)


def main() -> None:
    parser = argparse.ArgumentParser(description="The engine under fire, against an undisturbed run.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--generations", type=int, help="end after so many instead")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--strategy", choices=STRATEGIES, default="all_reduce")
    parser.add_argument("--network", action="store_true", help="lines are cut as well; needs root")
    parser.add_argument("--keep", type=Path, help="folder for logs and objects; default: a temporary one")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="elastrain-chaos-"))
    print(
        f"{options.strategy}, seed {options.seed}, {options.workers} workers, {options.minutes:g} minutes, "
        f"in {folder}",
        flush=True,
    )
    kind = Chaos
    if options.network:
        from engine.net_chaos import NetChaos as kind  # type: ignore[no-redef]
    seconds = options.minutes * 60
    sizes = (options.workers, options.seed, seconds)
    chaos = under_fire(folder, *sizes, kind, options.spares, options.generations, options.strategy)
    same = "samples as planned" if options.strategy == "gossip" else "digest equal"
    print(f"{options.strategy}, seed {options.seed}: {chaos.summary()}, {same}")


if __name__ == "__main__":
    sys.exit(main())

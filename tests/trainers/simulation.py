"""Random schedules around the real membership machine: chaos for a while, then calm, and the job must end.

python -m trainers.simulation --runs 100000     (in tests/; many schedules)
python -m trainers.simulation --seed 4711       (one schedule, told word by word)
python -m trainers.simulation --big             (what a change costs with 1,000 workers)
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable

from elastrain.trainers import messages as m
from elastrain.trainers.membership import Phase
from trainers import big
from trainers.simulated_worker import SimulatedWorker
from trainers.simulated_world import Setup, World

CALM_TURNS = 8000
IDLE_TICKS = 80  # so long nothing but time may be needed: backoff, silence, start timeout


def draw(rng: random.Random) -> Setup:
    """A small world: few workers, few blocks, few steps, so that everything meets everything."""
    workers, total = rng.randint(1, 6), rng.choice([None, rng.randint(1, 12)])
    return Setup(
        workers=workers,
        minimum=rng.choice([1, 1, rng.randint(1, workers)]),
        per_group=rng.choice([1, 1, 1, 2, 3]),
        nodes=rng.randint(1, 3),
        blocks=rng.randint(1, 9),
        microbatches=rng.randint(1, 5),
        total=total,
        save_every=rng.randint(1, 8),
        evaluate_every=rng.choice([0, 0, 2, 3]),
        poison=(rng.randint(0, 8), 0) if rng.random() < 0.03 else None,
        flaky=rng.choice([0.0, 0.0, 0.0, 0.01]),
        flaky_start=rng.choice([0.0, 0.0, 0.0, 0.1]),
        bad_upload=rng.choice([0.0, 0.0, 0.1]),
    )


class Chaos:
    """Faults, each run with its own selection and number of them."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        every: list[Callable[[], None]] = [
            self.kill,
            self.kill_node,
            self.kill_owner_and_buddy,
            self.freeze,
            self.thaw,
            self.cut,
            self.heal,
            self.lag,
            self.scale,
            self.want_checkpoint,
            self.damage,
            self.starve,
            self.finish,
        ]
        self.kinds = self.rng.sample(every, self.rng.randint(1, len(every)))
        self.rate = self.rng.choice([0.005, 0.02, 0.05])
        self.kills = self.rng.randint(0, 6)

    def strike(self) -> None:
        self.rng.choice(self.kinds)()

    def _one(self) -> SimulatedWorker | None:
        alive = [w for w in self.world.workers.values() if w.alive]
        return self.rng.choice(alive) if alive else None

    def _kill(self, worker: SimulatedWorker | None, with_node: bool) -> None:
        if worker is None or not worker.alive or self.kills <= 0:
            return
        self.kills -= 1
        self.world.faults["infrastructure"] += 1
        self.world.say(f"kill {worker.id}{' with its node' if with_node else ''}")
        self.world.kill(worker, with_node=with_node)

    def kill(self) -> None:
        self._kill(self._one(), with_node=self.rng.random() < 0.3)

    def kill_node(self) -> None:
        node = f"n{self.rng.randrange(self.world.setup.nodes)}"
        for worker in self.world.workers.values():
            if worker.node == node:
                self._kill(worker, with_node=True)

    def kill_owner_and_buddy(self) -> None:
        worker = self._one()
        if worker is not None and worker.meeting is not None:
            meeting = worker.meeting
            buddy = meeting.ownership.buddy[meeting.opening.rank_of(worker.id)]
            self._kill(worker, with_node=True)
            if buddy is not None:
                self._kill(self.world.workers[meeting.opening.workers[buddy]], with_node=True)

    def freeze(self) -> None:
        if (worker := self._one()) is not None:
            self.world.say(f"freeze {worker.id}")
            self.world.faults["infrastructure"] += 1
            worker.frozen = True

    def thaw(self) -> None:
        for worker in self.world.workers.values():
            worker.frozen = False

    def cut(self) -> None:
        if (worker := self._one()) is not None:
            self.world.say(f"cut {worker.id}")
            self.world.faults["infrastructure"] += 1
            worker.cut = True

    def heal(self) -> None:
        for worker in self.world.workers.values():
            worker.cut = False

    def lag(self) -> None:
        if (worker := self._one()) is not None:
            worker.lag = self.rng.choice([0.0, 0.8, 0.97])

    def scale(self) -> None:
        target = self.rng.randint(1, 6)
        self.world.feed(m.Scale(self.rng.randint(1, target), target))

    def want_checkpoint(self) -> None:
        self.world.feed(m.CheckpointWanted("asked for"))

    def damage(self) -> None:
        """The newest checkpoint turns out to be bad."""
        if self.world.ledger.saved and self.rng.random() < 0.3:
            self.world.damaged.add(max(self.world.ledger.saved))

    def starve(self) -> None:
        """The driver stood still, or the network did: time passes and nobody is heard."""
        for _ in range(self.rng.randint(1, 3)):
            self.world.tick(self.rng.choice([2.0, 60.0]), heard=self.rng.choice([0.0, 0.5]))

    def finish(self) -> None:
        if self.rng.random() < 0.2:
            why = self.rng.choice(["paused", "preempted", "cancelled"])
            self.world.asked.add(why)
            self.world.feed(m.Finish(why))  # type: ignore[arg-type]


def run(seed: int, *, tell: bool = False) -> World:
    """One schedule. Raises AssertionError if an invariant does not hold, or if the job does not end."""
    rng = random.Random(seed)
    world = World(rng, draw(rng))
    world.trace = [] if tell else None
    world.say(str(world.setup))
    try:
        world.tick(0.1, heard=1.0)
        _rage(world, Chaos(world), turns=rng.choice([50, 200, 600]))
        _calm(world)
    except BaseException:
        if world.trace is not None:
            print("\n".join(world.trace))
        raise
    return world


def _rage(world: World, chaos: Chaos, turns: int) -> None:
    for _ in range(turns):
        if world.end is not None:
            return
        world.turns += 1
        dice = world.rng.random()
        if dice < chaos.rate:
            chaos.strike()
        elif dice < chaos.rate + 0.02:
            world.tick(world.rng.choice([0.1, 1.0, 2.0]), heard=0.9)
        elif now := world.turns_now():
            what, whom = world.rng.choice(now)
            what(whom)
        else:
            world.tick(2.0, heard=0.95)


def _calm(world: World) -> None:
    """No more faults: whoever froze wakes up or not, connections heal, and the job has to end."""
    world.say("calm")
    for worker in world.workers.values():
        worker.cut, worker.lag = False, 0.0
        worker.frozen = worker.frozen and world.rng.random() < 0.5
    idle = 0
    for _ in range(CALM_TURNS):
        if world.end is not None:
            return
        world.turns += 1
        now = world.turns_now()
        idle = 0 if now else idle + 1
        if idle > IDLE_TICKS:
            break
        if not now or world.rng.random() < 0.01:
            world.tick(2.0, heard=1.0)
        else:
            what, whom = world.rng.choice(now)
            what(whom)
        if world.setup.total is None and not world.asked and _settled(world):
            world.asked.add("paused")
            world.feed(m.Finish("paused"))
            if world.rng.random() < 0.3:  # the last fault: the pause has to outlive it
                world.kill(world.workers[world.rng.choice(world.machine.members)])
    machine = world.machine
    why = "nothing more happens" if idle else f"it goes on after {CALM_TURNS} turns"
    raise AssertionError(
        f"the job does not end ({why}): {machine.phase}, step {machine.progress.step}, {machine.members}"
    )


def _settled(world: World) -> bool:
    """Everybody who is wanted trains, and every group that is not has ended."""
    machine = world.machine
    wanted = -(-machine.policy.target // machine.policy.per_group) * machine.policy.per_group
    serving = {g.id for g in machine.roster.serving()}
    return (
        machine.phase is Phase.STEADY
        and len(machine.members) == wanted
        and all(machine.roster.workers[w].group in serving for w in machine.members)
        and all(g.id in serving or g.ended for g in machine.roster.groups.values())
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--big", action="store_true", help="what a change costs with 1,000 workers")
    parser.add_argument("--seed", type=int, help="tell this one schedule word by word")
    options = parser.parse_args()
    if options.big:
        big.main()
        return
    if options.seed is not None:
        print("\n".join(run(options.seed, tell=True).trace or []))
        return
    counts: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    started = time.perf_counter()
    for seed in range(options.first, options.first + options.runs):
        try:
            counts.update(run(seed).ledger.counts)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            failed["".join(c for c in text if not c.isdigit())[:100]] += 1
            if sum(failed.values()) <= 20:
                print(f"seed {seed}: {text[:200]}")
    print(f"{options.runs} schedules in {time.perf_counter() - started:.1f} s: {dict(counts)}")
    for text, count in failed.most_common(30):
        print(f"{count:6} {text}")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""Random schedules around the real membership machine: chaos for a while, then calm, and the job must end.

python -m trainers.simulation --runs 100000     (in tests/; many schedules)
python -m trainers.simulation --seed 4711       (the story of that seed, told word by word)
python -m trainers.simulation --story "Story(...)"   (this one, as hypothesis prints it)
python -m trainers.simulation --big             (what a change costs with 1,000 workers)
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Sequence

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Phase
from trainers import big
from trainers.simulated_faults import BY_NAME, WEIGHED
from trainers.simulated_world import World
from trainers.story import Deed, Story, draw, parse

CALM_TURNS = 8000
LAST_AMBUSH = 400  # turns after the last deed; what has not found its moment by then never does
IDLE_TICKS = 80  # so long nothing but time may be needed: backoff, silence, start timeout


def run(story: Story | int, *, tell: bool = False, kinds: Sequence[str] = WEIGHED) -> World:
    """One story, or that of a seed, with these kinds of faults. Raises AssertionError if an invariant does
    not hold, or if the job does not end; if it was to be told, what happened is in the error's notes."""
    if isinstance(story, int):
        story = draw(random.Random(story), kinds)
    world = World(random.Random(story.order), story.setup)
    world.trace = [] if tell else None
    world.say(str(story.setup))
    try:
        world.tick(0.1, heard=1.0)
        _rage(world, story.deeds)
        _calm(world)
    except BaseException as error:
        if world.trace is not None:
            error.add_note("\n".join(world.trace))
        raise
    return world


def _rage(world: World, deeds: Sequence[Deed]) -> None:
    """Each deed in its turn."""
    for deed in deeds:
        for _ in range(deed.after):
            _turn(world, ticks=0.02)
            if world.end is not None:
                return
        world.say(f"deed: {deed.kind} {deed.pick}")
        BY_NAME[deed.kind].how(world, random.Random(deed.pick))
        if world.end is not None:
            return


def _turn(world: World, ticks: float, heard: float = 0.95) -> bool:
    """The next thing happens, whatever it is; or a tick: by chance, or since nothing else can. Returns
    whether anything but a tick was possible."""
    world.turns += 1
    if world.ambushes:
        world.lie_in_wait()
    if world.driver_wakes is not None and world.turns >= world.driver_wakes:
        world.wake_driver()
    now = world.turns_now()
    if now and world.rng.random() >= ticks:
        what, whom = world.rng.choice(now)
        what(whom)
    elif world.driver_wakes is None:
        world.tick(world.rng.choice([0.1, 1.0, 2.0]) if now else 2.0, heard=heard)
    return bool(now)


def _calm(world: World) -> None:
    """No more faults: whoever froze wakes up or not, connections heal, and the job has to end."""
    world.say("calm")
    _heal(world)
    for worker in world.workers.values():
        worker.frozen = worker.frozen and world.rng.random() < 0.5
    idle = 0
    for turn in range(CALM_TURNS):
        if world.end is not None:
            return
        if turn == LAST_AMBUSH:
            world.ambushes.clear()
            _heal(world)
        idle = 0 if _turn(world, ticks=0.01, heard=1.0) else idle + 1
        if idle == IDLE_TICKS // 2:
            world.release()
        if idle > IDLE_TICKS:
            break
        if world.setup.total is None and not world.asked and _settled(world):
            world.asked.add("paused")
            world.feed(m.Finish("paused"))
            if world.rng.random() < 0.3:  # the last fault: the pause has to outlive it
                world.faults["infrastructure"] += 1
                world.kill(world.workers[world.rng.choice(world.machine.members)])
    machine = world.machine
    why = "nothing more happens" if idle else f"it goes on after {CALM_TURNS} turns"
    raise AssertionError(
        f"the end: it does not come ({why}): {machine.phase}, step {machine.progress.step}, {machine.members}"
    )


def _heal(world: World) -> None:
    if world.driver_wakes is not None:
        world.wake_driver()
    world.no_room = False
    for worker in world.workers.values():
        worker.cut, worker.lag, worker.sloth = False, 0.0, 0.0


def _settled(world: World) -> bool:
    """Everybody who is wanted trains, and every group that is not has ended."""
    machine = world.machine
    wanted = machine.fleet.wanted * machine.policy.per_group
    if (
        machine.phase is not Phase.STEADY
        or len(machine.generation.members) != wanted + machine.policy.servers
    ):
        return False
    serving = {g.id for server in (False, True) for g in machine.roster.serving(server)}
    return all(machine.roster.workers[w].group in serving for w in machine.members) and all(
        g.id in serving or g.ended for g in machine.roster.groups.values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--big", action="store_true", help="what a change costs with 1,000 workers")
    parser.add_argument("--seed", type=int, help="tell the story of this seed word by word")
    parser.add_argument("--story", type=parse, help="tell this story word by word")
    options = parser.parse_args()
    if options.big:
        big.main()
        return
    if options.seed is not None or options.story:
        print("\n".join(run(options.story or options.seed, tell=True).trace or []))
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

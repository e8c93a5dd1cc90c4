"""Everything that may be done to a simulated world: one table, one small function each.

To add a kind of fault: write a function `(world, dice)` below that does it to the world and calls
`world.happened("its name")` when it really did, and give it a row in KINDS. `dice` is a random.Random made
from the deed's number: take every choice from it, so that a story can be told again and shrinks. If it is
worth a promise, give the row `least`: so often it must have happened in the 2,000 stories of the quick suite
(test_simulation.py checks it). Half of what is usual is enough: which stories hypothesis draws changes with
nearly every change of the code. What cannot be done, but only be seen to happen, is counted in the same way
where it is seen, and has its `least` in SEEN.
What the machine has to make of it belongs into ledger.py; a new word of a worker into simulated_worker.py.

What the messages suffer. Words on one connection keep their order, it is a TCP stream, so
- *reordered* means: of words on different connections the later one comes first. Whose turn is next is drawn,
  so this happens all the time; `lag` holds a connection up for longer.
- *late*: a word comes when its generation is over, or its sender removed or dead. `lag`, `cut` and every kill
  make such words: what a dead or fenced process said last is still on the way.
- *lost*: only with their connection. `break_line` breaks one, both sides hear of it, and words in it are
  gone; `kill_node` takes what the node had not sent yet.
- *doubled*: a member says again what may not have arrived (`say_again`); and rank 0 and its buddy both pass
  on each record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Phase

if TYPE_CHECKING:
    from trainers.simulated_worker import SimulatedWorker
    from trainers.simulated_world import World

How = Callable[["World", random.Random], None]


@dataclass(frozen=True)
class Kind:
    name: str
    weight: int  # how often it is drawn
    how: How
    least: int = 0  # times that it happened in 2,000 stories


# ---- processes ---------------------------------------------------------------------------------


def kill(world: World, dice: random.Random) -> None:
    """SIGKILL of one worker."""
    if (worker := _one(world, dice)) is not None:
        _kill(world, worker, with_node=dice.random() < 0.3)
        world.happened("kill")


def kill_node(world: World, dice: random.Random) -> None:
    node = f"n{dice.randrange(world.setup.nodes)}"
    here = [w for w in world.workers.values() if w.alive and w.node == node]
    for worker in here:
        _kill(world, worker, with_node=True)
    world.happened("kill_node", bool(here))


def kill_owner_and_buddy(world: World, dice: random.Random) -> None:
    """A member, and the one who keeps the same state, before anybody could react."""
    worker = _one(world, dice, in_meeting=True)
    if worker is None or worker.meeting is None:
        return
    meeting = worker.meeting
    rank = meeting.ownership.buddy[meeting.opening.rank_of(worker.id)]
    buddy = world.workers[meeting.opening.workers[rank]] if rank is not None else None
    _kill(world, worker, with_node=True)
    if buddy is not None and buddy.alive:
        _kill(world, buddy, with_node=True)
        world.happened("kill_owner_and_buddy")


def kill_while_reforming(world: World, dice: random.Random) -> None:
    """A member dies; the next two die while the others are still about to re-form."""
    left = [dice.randint(1, 2)]
    last = [world.machine.generation.number, world.machine.phase]

    def ambush() -> bool:
        now = [world.machine.generation.number, world.machine.phase]
        if now == last or now[1] not in (Phase.COLLECTING, Phase.FORMING):
            return False
        last[:] = now
        alive = [w for w in world.machine.generation.survivors if world.workers[w.id].alive]
        if alive:
            _kill(world, world.workers[dice.choice(alive).id], with_node=dice.random() < 0.3)
            world.happened("kill_while_reforming")
        left[0] -= 1
        return left[0] == 0 or not alive

    kill(world, dice)
    world.ambushes.append(ambush)


def kill_the_only_witness(world: World, dice: random.Random) -> None:
    """The first member that has a commit record dies with its words, before anybody else has it; what it
    should have passed on to the others is lost as well."""

    def ambush() -> bool:
        step = world.ledger.step
        for worker in world.workers.values():
            if worker.alive and worker.meeting is not None and worker.copy.step > step:
                meeting = worker.meeting
                others = [world.workers[w] for w in meeting.present - {worker.id}]
                if not any(w.copy.step == worker.copy.step for w in others):
                    if dice.random() < 0.8:
                        meeting.deaf |= {meeting.opening.rank_of(w.id) for w in others}
                    _kill(world, worker, with_node=True, loses_all=True)
                    world.happened("kill_the_only_witness")
                    return True
        return False

    world.ambushes.append(ambush)


def freeze(world: World, dice: random.Random) -> None:
    """SIGSTOP, or user code that holds the interpreter's lock."""
    if (worker := _one(world, dice)) is not None:
        world.faults["infrastructure"] += 1
        worker.frozen = True
        world.happened("freeze")


def thaw(world: World, dice: random.Random) -> None:
    """SIGCONT."""
    for worker in world.workers.values():
        worker.frozen = False


def freeze_until_removed(world: World, dice: random.Random) -> None:
    """SIGSTOP until it is shut out, then SIGCONT: it goes on where it was, until it is killed."""
    worker = _one(world, dice, in_meeting=True)
    if worker is None:
        return
    world.faults["infrastructure"] += 1
    worker.frozen = True

    def ambush() -> bool:
        if worker.fenced and worker.alive:
            worker.frozen = False
            world.happened("a fenced worker wakes up")
        return worker.fenced or not worker.alive

    world.happened("freeze_until_removed")
    world.ambushes.append(ambush)
    _time_passes(world, dice, dice.randint(0, 5))


def stick(world: World, dice: random.Random) -> None:
    """User code deadlocks: the training thread says nothing more, but the worker beats. One that idles is in
    no user's code."""
    if (worker := _one(world, dice, in_meeting=True)) is not None and not worker.idles:
        world.faults["infrastructure"] += 1
        worker.stuck = True
        world.happened("stick")


def slow(world: World, dice: random.Random) -> None:
    if (worker := _one(world, dice)) is not None:
        worker.sloth = dice.choice([0.5, 0.9, 0.97])
        world.happened("slow")


def rot(world: World, dice: random.Random) -> None:
    """A bit of what a member keeps flips, and nobody says so."""
    worker = _one(world, dice, in_meeting=True)
    if worker is not None and worker.copy.state:
        world.faults["infrastructure"] += 2
        worker.copy.rotten ^= {dice.choice(sorted(worker.copy.state))}
        world.happened("rot")


def notice(world: World, dice: random.Random) -> None:
    """SIGTERM to a worker; perhaps it is killed when its time is up."""
    if (worker := _one(world, dice)) is not None:
        world.notice(worker, dice.choice([2.0, 10.0, 40.0]), killed=dice.random() < 0.3)


def notice_to_all(world: World, dice: random.Random) -> None:
    """SIGTERM to every worker of a node, with time enough; or of all nodes, and there is no room for others
    before these are gone."""
    node = f"n{dice.randrange(world.setup.nodes)}" if dice.random() < 0.3 else None
    world.no_room = world.no_room or node is None
    for worker in world.workers.values():
        if node in (None, worker.node):
            world.notice(worker, 10.0, killed=False)
    if node is None:
        world.faults["no room"] += 5  # starts that take too long
        world.ambushes.append(world.makes_room)
        _time_passes(world, dice, dice.randint(0, 3))


# ---- connections -------------------------------------------------------------------------------


def cut(world: World, dice: random.Random) -> None:
    """No word passes between one worker and the coordinator, and neither notices."""
    if (worker := _one(world, dice)) is not None:
        _cut(world, worker)
        world.happened("cut")


def partition(world: World, dice: random.Random) -> None:
    """Some members, or all, are cut off from the coordinator until it removes the silent; they still hear
    each other."""
    members = [w for w in world.workers.values() if w.alive and w.meeting is not None]
    share = dice.choice([0.3, 0.6, 1.0])
    for worker in members:
        if dice.random() < share:
            _cut(world, worker)
            world.happened("partition")
    _time_passes(world, dice, dice.randint(0, 6))


def cut_in_the_commit(world: World, dice: random.Random) -> None:
    """A member is cut off when all have entered a commit, and is removed: the others go on without it, while
    it still finishes the step."""

    def ambush() -> bool:
        for worker in world.workers.values():
            meeting = worker.meeting
            if not worker.alive or worker.cut or meeting is None or meeting.world == 1:
                continue
            if len(meeting.tables.get(("commit", worker.copy.step), ())) == meeting.world:
                _cut(world, worker)
                world.happened("cut_in_the_commit")
                _time_passes(world, dice, dice.randint(3, 6))
                return True
        return False

    world.ambushes.append(ambush)


def cut_link(world: World, dice: random.Random) -> None:
    """Nothing passes any more between two members, who both reach the coordinator."""
    worker = _one(world, dice, in_meeting=True)
    peers = sorted(worker.meeting.present - {worker.id}) if worker and worker.meeting else []
    if worker is not None and peers:
        world.faults["infrastructure"] += 1
        world.cuts.add(frozenset((worker.id, dice.choice(peers))))
        world.happened("cut_link")


def mend_links(world: World, dice: random.Random) -> None:
    world.cuts.clear()


def heal(world: World, dice: random.Random) -> None:
    for worker in world.workers.values():
        worker.cut = False


def lag(world: World, dice: random.Random) -> None:
    if (worker := _one(world, dice)) is not None:
        worker.lag = dice.choice([0.0, 0.8, 0.97])
        world.happened("lag")


def break_line(world: World, dice: random.Random) -> None:
    """A connection breaks; words in it are lost, in both directions, and both sides hear of it."""
    if (worker := _one(world, dice)) is not None and not worker.broken:
        world.faults["infrastructure"] += 1
        lost = world.break_line(worker, dice)
        world.happened("break_line")
        world.happened("lost words", lost > 0)


def say_again(world: World, dice: random.Random) -> None:
    """A member repeats the last words that it said, since they may not have arrived: at once, or when it got
    its connection back and the next generation has begun, or the job was rolled back."""
    worker, counts = _one(world, dice), world.ledger.counts
    if worker is None:
        return
    waits_for = dice.choice(["nothing", "generations", "rollbacks"])
    before, said = counts[waits_for], list[m.Event]()

    def ambush() -> bool:
        if waits_for != "nothing" and counts[waits_for] == before:
            said[:] = worker.recent
            return not worker.alive
        words = said or list(worker.recent)
        for word in words:
            worker.post(word, again=True)
        world.happened("say_again", bool(words) and worker.alive and not worker.broken)
        return True

    world.ambushes.append(ambush)


def come_back(world: World, dice: random.Random) -> None:
    """A worker that was removed opens a new connection: under its old name, or one that nobody knows."""

    def ambush() -> bool:
        removed = [w for w in world.workers.values() if w.alive and w.id in world.ledger.removed]
        if removed:
            worker = dice.choice(removed)
            old = dice.random() < 0.7
            world.register_again(worker.id if old else f"x{dice.randrange(100)}", worker.node)
            world.happened(f"comes back under {'its old' if old else 'a new'} name")
        return bool(removed)

    world.ambushes.append(ambush)


def starve(world: World, dice: random.Random) -> None:
    """Time passes and nobody is heard, or half are: the network stood still."""
    _time_passes(world, dice, dice.randint(1, 3), heard=dice.choice([0.0, 0.5]))
    world.happened("starve")


def freeze_driver(world: World, dice: random.Random) -> None:
    """The driver stands still for seconds: workers go on, nothing is heard, then the clock jumps."""
    world.driver_wakes = world.turns + dice.randint(5, 60)
    world.happened("freeze_driver")


# ---- wishes of people --------------------------------------------------------------------------


def scale(world: World, dice: random.Random) -> None:
    target = dice.randint(1, 6)
    world.feed(m.Scale(dice.randint(1, target), target))
    world.happened("scale")


def want_checkpoint(world: World, dice: random.Random) -> None:
    world.feed(m.CheckpointWanted("asked for"))
    world.happened("want_checkpoint")


def damage(world: World, dice: random.Random) -> None:
    """The newest checkpoint turns out to be bad, once there is one."""

    def ambush() -> bool:
        if world.ledger.saved:
            world.damaged.add(max(world.ledger.saved))
            world.happened("damage")
        return bool(world.ledger.saved)

    world.ambushes.append(ambush)


def finish(world: World, dice: random.Random) -> None:
    if dice.random() < 0.3:
        why = dice.choice(["paused", "preempted", "cancelled"])
        world.asked.add(why)
        world.feed(m.Finish(why))  # type: ignore[arg-type]
        world.happened("finish")


KINDS = (
    Kind("kill", 3, kill, 300),
    Kind("kill_node", 1, kill_node, 50),
    Kind("kill_owner_and_buddy", 2, kill_owner_and_buddy, 50),
    Kind("kill_while_reforming", 2, kill_while_reforming, 50),
    Kind("kill_the_only_witness", 3, kill_the_only_witness, 50),
    Kind("freeze", 1, freeze, 50),
    Kind("freeze_until_removed", 2, freeze_until_removed, 50),
    Kind("thaw", 1, thaw),
    Kind("stick", 1, stick, 50),
    Kind("slow", 1, slow, 50),
    Kind("rot", 2, rot, 50),
    Kind("notice", 3, notice, 150),
    Kind("notice_to_all", 2, notice_to_all),
    Kind("cut", 1, cut, 50),
    Kind("partition", 2, partition, 50),
    Kind("cut_in_the_commit", 2, cut_in_the_commit, 50),
    Kind("cut_link", 2, cut_link, 50),
    Kind("mend_links", 1, mend_links),
    Kind("heal", 2, heal),
    Kind("lag", 1, lag, 50),
    Kind("break_line", 1, break_line, 50),
    Kind("say_again", 3, say_again, 50),
    Kind("come_back", 2, come_back),
    Kind("starve", 1, starve, 50),
    Kind("freeze_driver", 1, freeze_driver, 50),
    Kind("scale", 3, scale, 150),
    Kind("want_checkpoint", 1, want_checkpoint, 50),
    Kind("damage", 1, damage, 20),
    Kind("finish", 1, finish, 10),
)
BY_NAME = {kind.name: kind for kind in KINDS}
WEIGHED = [kind.name for kind in KINDS for _ in range(kind.weight)]

# What is only seen to happen, and how often it must have been seen in 2,000 stories.
SEEN = {
    "worker.joined": 1000,
    "worker.left": 100,
    "corruption": 10,
    "lost words": 300,
    "late words": 300,
    "reordered words": 1000,
    "several deaths within one re-forming": 100,
    "rollbacks": 100,
    "evictions": 300,
    "removed as stuck": 20,
    "removed as cut off": 50,
    "a fenced generation finishes a step": 100,
    "a fenced worker wakes up": 50,
    "comes back under its old name": 50,
    "comes back under a new name": 20,
    "the only one who saw a commit is lost": 50,
}


def too_rare(counts: Mapping[str, int], stories: int = 2000) -> dict[str, tuple[int, int]]:
    """What happened less often than promised: name -> (times, promised), for so many stories."""
    promised = {**{k.name: k.least for k in KINDS}, **SEEN}
    least = {name: times * stories // 2000 for name, times in promised.items()}
    return {
        name: (counts.get(name, 0), times) for name, times in least.items() if counts.get(name, 0) < times
    }


# ---- tools -------------------------------------------------------------------------------------


def _one(world: World, dice: random.Random, *, in_meeting: bool = False) -> SimulatedWorker | None:
    alive = [w for w in world.workers.values() if w.alive and (w.meeting is not None or not in_meeting)]
    return dice.choice(alive) if alive else None


def _kill(world: World, worker: SimulatedWorker, with_node: bool, loses_all: bool = False) -> None:
    if worker.alive:
        world.faults["infrastructure"] += 1
        world.say(f"kill {worker.id}{' with its node' if with_node else ''}")
        world.kill(worker, with_node=with_node, loses_all=loses_all)


def _cut(world: World, worker: SimulatedWorker) -> None:
    world.say(f"cut {worker.id}")
    world.faults["infrastructure"] += 1
    worker.cut = True


def _time_passes(world: World, dice: random.Random, ticks: int, heard: float = 1.0) -> None:
    world.faults["infrastructure"] += ticks  # nobody gets on meanwhile, also those who are starting
    for _ in range(ticks):
        world.tick(dice.choice([2.0, 60.0]), heard=heard)

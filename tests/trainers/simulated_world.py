"""The world of the simulation: connections, processes, a launcher and checkpoints around the real machine.

One turn delivers one message, lets one worker take one step of its life, or does one of the things that the
world does by itself. Words on one connection keep their order; everything else may come in any order. What is
done to the world on purpose is in simulated_faults.py, what must hold in it in ledger.py.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from elastrain.trainers.exchange.transfers import plan
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.balance import Pace
from elastrain.trainers.membership.machine import Machine, Phase, Policy
from elastrain.trainers.membership.messages import Fault, Json
from elastrain.trainers.membership.opening import Opening, thin
from elastrain.trainers.membership.roster import State
from elastrain.trainers.numerics.chunks import BUCKET, Domain, FlatSpace, Ownership
from trainers.ledger import Ledger
from trainers.simulated_copy import Meeting
from trainers.simulated_worker import Raised, SimulatedWorker
from trainers.story import Setup

CLOSED = "closed"
Turn = Callable[[], None]


@functools.lru_cache(maxsize=4096)
def ownership(blocks: int, domains: tuple[Domain, ...]) -> Ownership:
    """Two blocks per bucket, so that borders of buckets and chunks are met often."""
    space = FlatSpace((), blocks * (BUCKET // 2), BUCKET // 2)
    return Ownership.of(space, domains)


class World:
    def __init__(self, rng: random.Random, setup: Setup) -> None:
        self.rng, self.setup = rng, setup
        size = (setup.minimum, setup.workers, setup.per_group, setup.spares)
        policy = Policy(*size, silence=4, wait_s=12.0, start_timeout_s=30.0, leave_s=10.0)
        policy = replace(policy, servers=setup.servers)
        policy = replace(policy, stall_s=100.0, stall_steps=0.0, link_s=8.0, hang_s=50.0)
        self.machine = Machine(policy)
        self.ledger = Ledger(setup.microbatches)
        self.cuts: set[frozenset[str]] = set()  # pairs of workers between whom nothing passes
        self.workers: dict[str, SimulatedWorker] = {}
        self.groups: dict[str, list[SimulatedWorker]] = {}
        self.meetings: dict[int, Meeting] = {}
        self.members: dict[int, tuple[str, ...]] = {}
        self.clock = 0.0
        self.total = setup.total if setup.total is not None else 1 << 30
        self.todo: list[Turn] = []  # what the world does by itself: kills, news of groups, saves
        self.damaged: set[int] = set()
        self.pace = Pace()
        self.pending: dict[tuple[int, int], tuple[int, set[int]]] = {}  # -> (world, ranks that came)
        self.noticed: dict[str, float] = {}  # worker -> when it is killed, s
        self.no_room = False  # what is started does not get anywhere
        self.asked: set[str] = set()
        self.faults: Counter[str] = Counter()
        self.end: m.End | None = None
        self.trace: list[str] | None = None
        self.turns = 0
        self.sent = 0  # words of all workers
        self.driver_wakes: int | None = None  # the turn until which the driver stands still
        self.ambushes: list[Callable[[], bool]] = []  # faults that wait for their moment; True: done
        self.doomed: list[str] = []  # groups to be killed, as soon as their nodes can be reached
        self.deaths = 0  # while this re-forming lasts

    def happened(self, name: str, really: bool = True) -> None:
        """Count how often which fault really happened."""
        if really:
            self.ledger.counts[name] += 1
            self.say(name)

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.turns:5} {text}")

    # ---- the machine's shell (attempt.py, coordinator.py) -----------------------------------

    def feed(self, event: m.Event) -> None:
        if self.trace is not None and not isinstance(event, (m.Beat, m.Began, m.Tick)):
            self.say(f"  in  {event}")
        actions = self.machine.handle(event)
        self.ledger.answered(event, actions)
        if isinstance(event, m.Closed):
            self._parts_lost(event.worker)
        for action in actions:
            if self.trace is not None:
                self.say(f"  out {action}")
            self._do(action)

    def _do(self, action: m.Action) -> None:
        match action:
            case m.StartGroup(group, workers):
                node = f"n{self.rng.randrange(self.setup.nodes)}"
                self.groups[group] = [SimulatedWorker(self, w, group, node) for w in workers]
                for worker in self.groups[group]:
                    worker.frozen = self.no_room
                self.workers.update((w.id, w) for w in self.groups[group])
            case m.StopGroup(group, True):
                self.doomed.append(group)
            case m.Fence(worker, _):
                if worker in self.workers:
                    self._fence(self.workers[worker])
            case m.Halt(_, workers, _) | m.Probe(_, workers):
                self._tell(workers, action)
            case m.Dismiss(workers, _):
                self._tell(workers, action)
            case m.Command():
                self._tell(self.machine.members, action)
            case m.Accept():
                self.ledger.accept(action)
                self.pace.observe(action.record)
                self._kept_twice()
            case m.Open():
                self._open(action)
            case m.Say("worker.lost", _, data):
                self.ledger.removed.add(data["worker"])
                self.happened("removed as stuck", data["cause"].startswith("stuck"))
                self.happened("removed as cut off", data["cause"].startswith("cut off"))
            case m.Say("corruption" as what):
                self.ledger.distrusts = True
                self.happened(what)
            case m.Say("worker.joined" | "worker.left" as what):
                self.happened(what)
            case m.Say("generation.formed"):
                self.ledger.unheard = False
                self._kept_twice()
                self.happened("several deaths within one re-forming", self.deaths > 1)
                self.deaths = 0
            case m.Say("rollback", _, data) if self.machine.phase is Phase.ENDED:
                assert not self.machine.generation.keepers
                self.ledger.gave_up(data["to"])
            case m.Say("rollback"):
                assert self.faults["infrastructure"], "a rollback, though nobody was killed"
            case m.End():
                self.end = action
                self.ledger.ended(action, self.total, self.asked, self.faults)
                every = self.setup.evaluate_every
                if action.outcome == "succeeded" and every:
                    self.ledger.all_evaluated(range(every, self.total + 1, every))

    def _tell(self, workers: Sequence[str], message: Any) -> None:
        for worker in workers:
            if self.workers[worker].connected:
                self.workers[worker].inbox.append(message)

    def _fence(self, worker: SimulatedWorker) -> None:
        """The coordinator closes a connection. What is still in it comes late, and must change nothing."""
        self.ledger.unheard |= bool(worker.outbox)
        self.faults["infrastructure"] += 1
        if not worker.fenced:
            self.ledger.counts["evictions"] += 1
        worker.connected, worker.fenced = False, True
        worker.inbox.append(CLOSED)
        self._parts_lost(worker.id)

    def _open(self, action: m.Open) -> None:
        previous = self.members.get(action.generation - 1, ())
        present = [w for w in previous if self._was_survivor(w)]
        saved = max(self.ledger.saved - self.damaged, default=0)
        self.ledger.opened(action, self.workers, present, max(self.ledger.saved, default=0))
        self._not_too_many(action.members)
        left = {self.machine.roster.workers[w].state for w in previous} <= {State.LEAVING, State.ENDED}
        self.happened("all leave, and it is saved", action.restore and left and 0 < saved == self.ledger.step)
        self._witnesses(action, previous)
        self.members[action.generation] = action.members
        if action.restore:
            self.todo.append(lambda: self._restore(action))
        else:
            self._say_open(action, action.step, None)

    def _restore(self, action: m.Open) -> None:
        """The newest good checkpoint was found (opener.py); the generation may be over by then."""
        step = max(self.ledger.saved - self.damaged, default=0)
        if self.machine.phase is Phase.FORMING and self.machine.generation.number == action.generation:
            self.ledger.restored(step)
            self.feed(m.Restored(step))
        self._say_open(action, step, {"step": step})

    def _say_open(self, action: m.Open, step: int, restore: Json | None) -> None:
        if action.cursor:
            self.ledger.evaluated.add(action.cursor["evaluated"])  # tally.py looks there as well
        members, before = self._describe(action.members), self._describe(self.members.get(action.same[0], ()))
        said = {
            "generation": action.generation,
            "step": step,
            "cursor": action.cursor,
            "record": action.record,
            "whole": action.whole,
            "done": {w: list(d) for w, d in action.done.items()},
            "restore": restore,
            "saved_step": self.machine.progress.saved_step or 0,
            "pace": self.pace.to_json(action.members),
            "hold": action.hold,
            **thin(members, action, before),
        }
        opening = Opening.from_json(said)
        self.ledger.thinned(opening, action, ownership(self.setup.blocks, opening.before))
        self._tell(action.members, opening)

    def _describe(self, members: Sequence[str]) -> list[Json]:
        served = {"keeps": False} if self.setup.servers else {}
        return [
            {"worker": w, "group": self.workers[w].group, "node": self.workers[w].node}
            | ({} if w.startswith("s") else served)
            for w in members
        ]

    def _kept_twice(self) -> None:
        meeting = self.meetings.get(self.machine.generation.number)
        corrupt = meeting is not None and meeting.corrupt  # what they kept is dropped, and nobody knows yet
        if self.machine.phase is Phase.STEADY and not corrupt:
            members = [self.workers[w.id] for w in self.machine.generation.keepers]
            self.ledger.kept_twice(members, self.setup.blocks, self.ledger.step)

    def _witnesses(self, action: m.Open, previous: Sequence[str]) -> None:
        """Was a step committed that only a worker saw which is gone?"""
        seen = [w for w in previous if self.workers[w].copy.step > action.step and not action.restore]
        gone = bool(seen) and not set(seen) & set(action.members)
        self.happened("the only one who saw a commit is lost", gone)

    def finished(self, worker: SimulatedWorker, generation: int) -> None:
        """A worker carried out a commit."""
        over = generation < self.machine.generation.number
        self.happened("a fenced generation finishes a step", over or worker.id in self.ledger.removed)

    def _not_too_many(self, members: Sequence[str]) -> None:
        roster = self.machine.roster
        groups = {self.workers[w].group for w in members}
        groups -= {g for g in groups if roster.groups[g].server}
        stay = [g for g in groups if not (roster.groups[g].leaving or roster.groups[g].ended)]
        fleet = self.machine.fleet
        assert fleet.closing or len(stay) <= fleet.wanted, f"spares among the members: {members}"

    def _was_survivor(self, worker: str) -> bool:
        state = self.machine.roster.workers[worker].state
        return self.workers[worker].alive and state in (State.ACTIVE, State.LEAVING)

    def meeting(self, opening: Opening) -> Meeting:
        if opening.generation not in self.meetings:
            own = ownership(self.setup.blocks, tuple(opening.domains()))
            transfers = plan(opening, own) if opening.restore is None else []
            found = Meeting(opening, own, transfers, present=set(opening.workers))
            found.hurt = any(not self.workers[w].alive for w in opening.workers)
            self.meetings[opening.generation] = found
        return self.meetings[opening.generation]

    # ---- connections ------------------------------------------------------------------------

    def deliver(self, worker: SimulatedWorker) -> None:
        """The next word of a worker reaches the coordinator."""
        number, word = worker.outbox.popleft()
        others = (w.outbox[0][0] for w in self.workers.values() if w.outbox)
        self.happened("reordered words", min(others, default=number) < number)
        self.happened("late words", self._is_late(worker, word))
        match word:
            case "closed":
                if worker.connected:
                    worker.connected = False
                    self.feed(m.Closed(worker.id))
            case tuple() if worker.id in self.ledger.removed:
                pass  # the attempt drops what a removed worker still says
            case ("part", step, generation, rank, world):
                self._part(step, generation, rank, world)
            case ("part_failed", step, generation):
                self.pending.pop((step, generation), None)
                self._want_another(step)
            case ("evaluated", step):
                self.ledger.evaluated.add(step)
            case ("bad_checkpoint", step):
                self.damaged.add(step)
            case _:
                if isinstance(word, m.Registered):
                    worker.connected = True
                self.feed(word)

    def _is_late(self, worker: SimulatedWorker, word: Any) -> bool:
        """Of a generation that is over, or of a worker that was removed?"""
        of = getattr(getattr(word, "report", word), "generation", None)
        return word != CLOSED and (
            worker.id in self.ledger.removed or (of is not None and of < self.machine.generation.number)
        )

    def break_line(self, worker: SimulatedWorker, dice: random.Random) -> int:
        """Words in it are lost, the last ones; then both sides see it closed. Returns how many were lost."""
        worker.broken = True
        lost = dice.randint(0, len(worker.outbox)), dice.randint(0, len(worker.inbox))
        for line, count in zip((worker.outbox, worker.inbox), lost, strict=True):
            for _ in range(count):
                line.pop()
        self.ledger.unheard |= lost[0] > 0
        worker.outbox.append((self.sent, CLOSED))
        worker.inbox.append(CLOSED)
        return sum(lost)

    def register_again(self, worker: str, node: str) -> None:
        """A second connection says who it is; the coordinator refuses it while the first one is open."""
        known = self.workers.get(worker)
        if known is None or not known.connected:
            self.feed(m.Registered(worker, node, 1, {}))

    def tick(self, seconds: float, heard: float) -> None:
        """Time passes; beats come with probability `heard`."""
        for worker in self.workers.values():
            if worker.connected and worker.alive and not (worker.frozen or worker.cut or worker.gone):
                if self.rng.random() < heard:
                    self.feed(m.Beat(worker.id))
                if worker.waits_for is not None and worker.meeting is not None and not worker.stuck:
                    generation = worker.meeting.opening.generation
                    self.feed(m.Waits(worker.id, generation, worker.finished))
        self.clock += seconds
        before = self.machine.generation.survivors
        evicted = self.ledger.counts["evictions"]
        self.feed(m.Tick(self.clock))
        if self.ledger.counts["evictions"] - evicted > 1:
            self.ledger.evicted_together([w for w in before if w.state is State.LOST], len(before))

        for worker, when in list(self.noticed.items()):
            if self.clock >= when:
                del self.noticed[worker]
                self.faults["infrastructure"] += self.workers[worker].alive
                self.kill(self.workers[worker])

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cuts

    def reaches(self, one: str, other: str) -> bool:
        return one == other or (self.workers[other].alive and not self.is_cut(one, other))

    def release(self) -> None:
        """Nobody is removed while nobody waits: then it is for people to end it. Here it ends by itself."""
        survivors = [self.workers[w.id] for w in self.machine.generation.survivors]
        if survivors and all(w.stuck for w in survivors):
            survivors[0].stuck = False

    # ---- processes --------------------------------------------------------------------------

    def kill(self, worker: SimulatedWorker, *, with_node: bool = False, loses_all: bool = False) -> None:
        """SIGKILL. With its node, words that were on their way may be lost."""
        if not worker.alive:
            return
        if with_node and worker.outbox:
            for _ in range(self.rng.randint(0, len(worker.outbox)) if not loses_all else len(worker.outbox)):
                worker.outbox.pop()
                self.ledger.unheard = True
                self.happened("lost words")
        self.process_ended(worker, "signal 9 (SIGKILL)")

    def notice(self, worker: SimulatedWorker, grace_s: float, *, killed: bool) -> None:
        """SIGTERM; killed: and SIGKILL after the time."""
        if not worker.alive:
            return
        self.say(f"notice to {worker.id}")
        if killed:
            self.noticed.setdefault(worker.id, self.clock + grace_s)
        if not worker.warm:
            self.faults["infrastructure"] += 1
            self.kill(worker)
        elif not worker.gone:
            worker.post(m.Notice(worker.id, grace_s, "SIGTERM"))
            self.happened("notice")

    def makes_room(self) -> bool:
        """Is everybody gone who took the room? Then others may start."""
        if self.no_room and not any(w.alive and w.warm for w in self.workers.values()):
            self.no_room = False
            for worker in self.workers.values():
                worker.frozen = False
        return not self.no_room

    def process_ended(self, worker: SimulatedWorker, cause: str) -> None:
        worker.alive = False
        if worker.meeting is not None and self.machine.phase in (Phase.FORMING, Phase.COLLECTING):
            self.deaths += 1
        worker.inbox.clear()
        worker.uploads.clear()
        if worker.meeting is not None:
            worker.meeting.present.discard(worker.id)
        for meeting in self.meetings.values():
            meeting.hurt |= worker.id in meeting.opening.workers
        if not (worker.fenced or worker.broken):
            worker.outbox.append((self.sent, CLOSED))
        peers = self.groups[worker.group]
        if not any(w.alive for w in peers):
            causes = {w.id: cause for w in peers}
            self.todo.append(lambda: self.feed(m.GroupGone(worker.group, causes)))

    def _kill_group(self, group: str) -> None:
        self.doomed.remove(group)
        for worker in self.groups[group]:
            self.kill(worker)

    # ---- user code --------------------------------------------------------------------------

    def fails_to_start(self, worker: SimulatedWorker) -> bool:
        if not self._chance(self.setup.flaky_start):
            return False
        self._raised()
        return True

    def compute(self, worker: SimulatedWorker, step: int, microbatch: int) -> None:
        if self.setup.poison == (step, microbatch) or self._chance(self.setup.flaky):
            self._raised()
            raise Raised(Fault("compute", "ValueError: poison", "", step, microbatch))

    def _raised(self) -> None:
        self.faults["user"] += 1
        self.faults["infrastructure"] += 1

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    # ---- checkpoints (checkpoints.py) -------------------------------------------------------

    def is_damaged(self, step: int) -> bool:
        return step in self.damaged

    def upload(self, worker: SimulatedWorker) -> None:
        step, generation, rank, world = worker.uploads.popleft()
        if self._chance(self.setup.bad_upload):
            worker.post(("part_failed", step, generation))
        else:
            worker.post(("part", step, generation, rank, world))

    def _part(self, step: int, generation: int, rank: int, world: int) -> None:
        _, came = self.pending.setdefault((step, generation), (world, set()))
        came.add(rank)
        if len(came) == world:
            del self.pending[step, generation]
            self.todo.append(lambda: self._save(step))

    def _save(self, step: int) -> None:
        self.ledger.saved.add(step)
        self.damaged.discard(step)
        self.feed(m.CheckpointSaved(step))

    def _parts_lost(self, worker: str) -> None:
        for (step, generation), (keepers, came) in list(self.pending.items()):
            members = self.members[generation][:keepers]
            if worker in members and members.index(worker) not in came:
                del self.pending[step, generation]
                self._want_another(step)

    def _want_another(self, step: int) -> None:
        def ask() -> None:
            if self.machine.phase is not Phase.ENDED and (self.machine.progress.saved_step or 0) < step:
                self.feed(m.CheckpointWanted(f"checkpoint {step} failed"))

        self.todo.append(ask)

    # ---- what may happen next ---------------------------------------------------------------

    def turns_now(self) -> list[tuple[Callable[[Any], None], Any]]:
        """Everything that could be the next thing to happen, faults and time aside: (what, with whom)."""
        awake = self.driver_wakes is None
        turns: list[tuple[Callable[[Any], None], Any]] = [(self._does, t) for t in self.todo] if awake else []
        for group in self.doomed:
            if awake and not any(w.cut for w in self.groups[group]):
                turns.append((self._kill_group, group))
        for w in self.workers.values():
            if awake and w.outbox and not w.cut and self.rng.random() >= w.lag:
                turns.append((self.deliver, w))
            if not w.alive or w.frozen or (w.sloth and self.rng.random() < w.sloth):
                continue
            if w.inbox and not w.cut:
                turns.append((self._hears, w))
            if w.uploads:
                turns.append((self.upload, w))
            if not w.stuck and w.runnable():
                turns.append((SimulatedWorker.turn, w))
        return turns

    def lie_in_wait(self) -> None:
        """Faults that wait for their moment look whether it has come."""
        self.ambushes = [ambush for ambush in self.ambushes if not ambush()]

    def wake_driver(self) -> None:
        """It finds that much time has passed, and everything that was said meanwhile."""
        self.driver_wakes = None
        self.tick(30.0, heard=0.0)

    def _hears(self, worker: SimulatedWorker) -> None:
        worker.hear(worker.inbox.popleft())

    def _does(self, turn: Turn) -> None:
        self.todo.remove(turn)
        turn()

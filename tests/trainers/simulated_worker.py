"""A worker of the simulation: the protocol of loop.py and handover.py around a copy of versions.

What decides is the real code: who keeps what (`Ownership`), what travels (`handover.plan`), who computes
what (`deal`). Where the real worker may be interrupted, the generator yields; everything between two yields
happens at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastrain.trainers.exchange.digests import Corrupt, differences
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.balance import Balance
from elastrain.trainers.membership.messages import Fault, Report
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.membership.suspicion import Disagreement
from trainers.simulated_copy import Copy, Meeting, blocks_in
from trainers.simulated_lines import Broken, Dismissed, Halted, Lines, Operation, Wait

if TYPE_CHECKING:
    from trainers.simulated_world import World


class Boundary(Exception): ...


class Raised(Exception):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault


@dataclass
class Generation:
    opening: Opening
    meeting: Meeting
    rank: int
    done: list[list[int]]
    balance: Balance
    held: set[int]  # blocks that this one is to keep
    chunks: Operation | None = None  # on their way to their new keepers
    all_have: Operation | None = None  # theirs: entered with one's own
    sealed: bool = False
    log: int = 0
    handled: int = 0
    compared: int = -1
    snapshots: set[int] = field(default_factory=set)


class SimulatedWorker(Lines):
    def __init__(self, world: World, worker: str, group: str, node: str) -> None:
        super().__init__(world, worker)
        self.group, self.node = group, node
        self.copy = Copy(world.setup.blocks)
        self.uploads: deque[tuple[int, int, int, int]] = deque()  # (step, generation, rank, world)
        self.warm = False
        self.moving: Generation | None = None
        self.pace = 0.3 if int(worker[1:]) % 3 == 2 else 0.1  # s per microbatch; every third worker is slow
        self.life = self.run()

    def turn(self) -> None:
        try:
            next(self.life)
        except (StopIteration, Dismissed):
            self.world.process_ended(self, "exit code 0")

    # ---- its life (loop.py) -----------------------------------------------------------------

    def run(self) -> Wait:
        self.send(m.Registered(self.id, self.node, 1, {}))
        yield
        if self.world.fails_to_start(self):
            self.send(m.StartFailed(self.id, Fault("start", "OSError: flaky", "")))
            yield from self.wait(None, lambda: False)
        self.warm = True
        self.send(m.Warm(self.id, self.world.setup.blocks))
        while True:
            yield from self.wait(None, lambda: self.opening is not None)
            opening, self.opening = self.opening, None
            assert opening is not None
            report = yield from self.live(opening)
            self.send(m.Reported(self.id, report))

    def live(self, opening: Opening) -> Iterator[Any]:
        number, self.idles, self.moving = opening.generation, False, None
        try:
            generation = yield from self.form(opening)
            while True:
                yield from self.boundary(generation)
                yield from self.step(generation)
        except (Boundary, Halted, Broken, Raised, Corrupt) as error:
            self.take_what_has_come()
            return self.ended(number, error)
        finally:
            if self.meeting is not None:
                self.meeting.present.discard(self.id)
            self.meeting = None

    def ended(self, number: int, error: Exception) -> Report:
        match error:
            case Boundary():
                return self.copy.report(number, "boundary")
            case Halted():
                return self.copy.report(number, "halted")
            case Raised():
                return self.copy.report(number, "fault", error.fault)
            case Corrupt():
                self.copy.forget()
                return replace(self.copy.report(number, "corrupt"), corrupt=error.found)
            case _:
                return self.copy.report(number, "broken")

    def form(self, opening: Opening) -> Iterator[Any]:
        rank = opening.rank_of(self.id)
        if opening.restore is not None:
            self.copy.forget()
        else:
            self.copy.catch_up(opening)
        meeting = self.meeting = self.world.meeting(opening)
        held = blocks_in(meeting.ownership.held(rank))
        yield from self.meet(meeting, "group", 0, None)
        done = [list(opening.done.get(w, [])) for w in opening.workers]
        generation = Generation(opening, meeting, rank, done, opening.balance(), held)
        if opening.restore is not None:
            yield
            if self.world.is_damaged(opening.step):
                self.send(("bad_checkpoint", opening.step))
                raise Broken
            self.copy.load(opening.step, self.world.ledger.chain(opening.step), held)
            yield from self.meet(meeting, "barrier", 0, None)
            self.copy.layout = opening.generation
        else:
            self.moving = generation
            yield from self.hand_over(generation)
        yield from self.seal(generation, wait=generation.chunks is None)
        return generation

    # ---- what travels while the first step is computed (handover.py) -------------------------

    def hand_over(self, g: Generation) -> Iterator[Any]:
        copy, opening, meeting, rank = self.copy, g.opening, g.meeting, g.rank
        survivors = opening.survivors()
        joins = rank not in survivors
        arrived = yield from self.meet(meeting, "buffers", 0, copy.buffers, survivors[:1] if joins else ())
        copy.buffers = arrived[survivors[0]] if joins else copy.buffers
        whole = [r for r, w in enumerate(opening.workers) if w in opening.whole]
        if whole:
            yield from self.parameters(g, whole)
        outgoing = blocks_in(t.blocks for t in meeting.transfers if t.source == rank)
        data = {b: (copy.params[b], copy.state[b], b in copy.rotten) for b in outgoing}
        sources = {t.source for t in meeting.transfers if t.target == rank}
        g.chunks = self.enter(meeting, "chunks", 0, data, sources)
        if not whole:  # from their keepers, once these have their chunks
            yield from self.here(g, wait=True)
            copy.whole = False
            yield from self.gather(meeting, rank, 0)

    def parameters(self, g: Generation, whole: list[int]) -> Wait:
        """Who lacks some gets all, a part from each who has them."""
        copy = self.copy
        if g.rank in whole:
            mine = {b: v for b, v in copy.params.items() if b % len(whole) == whole.index(g.rank)}
            self.enter(g.meeting, "parameters", 0, mine)
        else:
            arrived = yield from self.meet(g.meeting, "parameters", 0, None, whole)
            for source in whole:
                copy.params |= arrived[source]
            copy.whole = True

    def here(self, g: Generation, wait: bool) -> Wait:
        """Take in the chunks that this one is to keep, all at once."""
        if g.chunks is None or g.all_have is not None or not (wait or self.came(g.chunks)):
            return
        arrived = yield from self.until(g.chunks)
        self.take_in(g, arrived)
        g.all_have = self.enter(g.meeting, "all have", 0, None)

    def take_in(self, g: Generation, arrived: dict[int, Any]) -> None:
        copy = self.copy
        for transfer in (t for t in g.meeting.transfers if t.target == g.rank):
            for block in range(*transfer.blocks):
                copy.params[block], copy.state[block], rotten = arrived[transfer.source][block]
                copy.rotten |= {block} if rotten else set()
                copy.layout = 0

    def take_what_has_come(self) -> None:
        """The generation is over: the more is held, the less is lost with whom it broke for."""
        g = self.moving
        if g is not None and g.chunks is not None and g.all_have is None and self.came(g.chunks):
            self.take_in(g, g.chunks.table)

    def seal(self, g: Generation, wait: bool = True) -> Wait:
        """Once all have what they keep, the rest is dropped."""
        yield from self.here(g, wait)
        if g.sealed or (g.chunks is not None and g.all_have is None):
            return
        if g.all_have is not None:
            if not (wait or self.came(g.all_have)):
                return
            yield from self.until(g.all_have)
            self.copy.state = {b: self.copy.state[b] for b in g.held if b in self.copy.state}
            self.copy.rotten &= g.held
            self.copy.layout = g.opening.generation
        g.sealed = True
        self.world.ledger.formed(self, g.opening, g.held)
        self.send(m.Sealed(self.id, g.opening.generation, self.copy.step))

    def step(self, g: Generation) -> Wait:
        copy, meeting = self.copy, g.meeting
        at, own = copy.step, meeting.ownership
        todo = self.todo(g)
        yield from self.compute(g, todo[g.rank])
        yield from self.here(g, wait=True)
        has = [[*done, *new] for done, new in zip(g.done, todo, strict=True)]
        self.world.ledger.dealt(has)
        yield from self.reduce(meeting, g.rank, at, [r for r, h in enumerate(has) if h])
        yield from self.seal(g)
        entry = {
            "log": self.log[-1][0] if self.log else 0,
            "microbatches": sorted(copy.partial or ()),
            "seconds": self.pace * len(copy.partial or ()),
        }
        entries = yield from self.meet(meeting, "commit", at, entry)
        record = self.world.ledger.record(meeting, at, entries)
        copy.apply(record)
        self.world.ledger.applied(self, meeting)
        self.world.finished(self, g.opening.generation)
        g.balance.observe(record)
        g.done, g.log = [[] for _ in has], record["log"]
        yield
        if g.rank in (0, own.buddy[0]):
            self.send(m.Committed(self.id, g.opening.generation, copy.step, record))
        yield from self.gather(meeting, g.rank, copy.step)

    def todo(self, g: Generation) -> list[list[int]]:
        return g.balance.deal(self.world.setup.microbatches, g.done)

    def compute(self, g: Generation, microbatches: list[int]) -> Wait:
        copy, at = self.copy, self.copy.step
        copy.partial = copy.partial if copy.partial is not None else set()
        for microbatch in microbatches:
            if microbatch not in copy.partial:
                self.check(g.meeting)
                yield from self.seal(g, wait=False)
                self.send(m.Began(self.id, at, microbatch))
                yield
                try:
                    self.world.compute(self, at, microbatch)
                except Raised:  # whoever is removed for it may hold what nobody else has yet
                    yield from self.seal(g)
                    raise
                copy.partial.add(microbatch)

    def reduce(self, meeting: Meeting, rank: int, at: int, holders: list[int]) -> Wait:
        own = meeting.ownership
        mine = blocks_in(own.reduces(bucket, rank) for bucket in own.space.buckets())
        yield from self.meet(meeting, "reduce", at, None, holders if mine else ())
        summed = dict.fromkeys(mine, at)
        if not own.shared:
            kept = own.kept_for(rank)
            arrived = yield from self.meet(meeting, "forward", at, summed, kept)
            for owner in kept:
                summed |= {b: arrived[owner][b] for b in blocks_in(own.owned(owner))}
        self.copy.reduced = {b: summed[b] for b in blocks_in(own.held(rank))}
        yield from self.meet(meeting, "reduce buffers", at, None, holders)
        self.copy.new_buffers = at

    def gather(self, meeting: Meeting, rank: int, at: int) -> Wait:
        own, params = meeting.ownership, self.copy.params
        if not own.shared:
            mine = {b: params[b] for b in blocks_in(own.owned(rank))}
            others = set(range(meeting.world)) - {rank, *own.kept_for(rank)}
            arrived = yield from self.meet(meeting, "gather", at, mine, others)
            for owner in others:
                params.update(arrived[owner])
        self.copy.whole = True

    # ---- at a boundary ----------------------------------------------------------------------

    def boundary(self, g: Generation) -> Wait:
        kinds = yield from self.commands(g)
        if "regroup" in kinds:
            raise Boundary
        at, setup = self.copy.step, self.world.setup
        last = at >= self.world.total
        if g.opening.hold:
            yield from self.snapshot(g, again=False)
            yield from self.idle(g)
        if at and (last or at % setup.save_every == 0):
            yield from self.compare(g)
        due = at > 0 and setup.evaluate_every > 0 and at % setup.evaluate_every == 0
        if due and (self.copy.cursor or {})["evaluated"] != at:
            yield from self.evaluate(g)
            kinds |= yield from self.commands(g)
            if "regroup" in kinds:
                raise Boundary
        if (at and (last or at % setup.save_every == 0)) or kinds & {"checkpoint", "finish"}:
            yield from self.snapshot(g, again="checkpoint" in kinds)
        if last or "finish" in kinds:
            yield from self.idle(g)

    def compare(self, g: Generation) -> Wait:
        yield from self.seal(g)
        at, meeting = self.copy.step, g.meeting
        if g.compared == at or meeting.world == 1:
            return
        g.compared = at
        own = meeting.ownership
        mine = [str(sorted(blocks_in([chunk]) & self.copy.rotten)) for chunk in own.held(g.rank)]
        said = yield from self.meet(meeting, "compare", at, mine)
        found = differences([said[r] for r in range(meeting.world)], own, g.opening.workers)
        if found:
            meeting.corrupt = True
            raise Corrupt(Disagreement(at, -1, tuple(found)))

    def evaluate(self, g: Generation) -> Wait:
        yield from self.seal(g)
        while self.copy.cursor is not None and self.copy.cursor["evaluated"] != self.copy.step:
            at, position = self.copy.step, self.copy.cursor["position"]
            entry = self.log[-1][0] if self.log else 0
            entries = yield from self.meet(g.meeting, f"evaluate-{position}", at, entry)
            done = position + 1 == 2
            self.copy.cursor = {**self.copy.cursor, "position": 0 if done else position + 1}
            if done:
                self.copy.cursor["evaluated"] = at
            g.log = max(g.log, *entries.values())
            yield
            if "regroup" in (yield from self.peek(g)):
                break
        done = self.copy.cursor is not None and self.copy.cursor["evaluated"] == self.copy.step
        if done and g.rank in (0, g.meeting.ownership.buddy[0]):
            self.send(("evaluated", self.copy.step))

    def commands(self, g: Generation) -> Iterator[Any]:
        kinds = yield from self.peek(g)
        g.handled = max(g.handled, g.log)
        return kinds

    def peek(self, g: Generation) -> Iterator[Any]:
        while g.log > g.handled and (self.log[-1][0] if self.log else 0) < g.log:
            self.check(g.meeting)
            self.waits_for = lambda: bool(self.log) and self.log[-1][0] >= g.log
            yield
        self.waits_for = None
        return {kind for number, kind in self.log if g.handled < number <= g.log}

    def snapshot(self, g: Generation, again: bool) -> Wait:
        yield from self.seal(g)
        at = self.copy.step
        if at <= g.opening.saved_step or (at in g.snapshots and not again):
            return
        yield from self.compare(g)
        g.snapshots.add(at)
        while len(self.uploads) >= 2:
            self.check(g.meeting)
            self.waits_for = lambda: len(self.uploads) < 2
            yield
        self.waits_for = None
        keepers = g.meeting.ownership.keepers
        if g.rank in keepers:
            self.world.ledger.snapshot(self, g.meeting, g.rank)
            self.uploads.append((at, g.opening.generation, g.rank, len(keepers)))

    def idle(self, g: Generation) -> Wait:
        yield from self.seal(g)
        self.idles = True
        self.send(m.Idle(self.id, g.opening.generation, self.copy.step))
        while True:
            newest = self.log[-1][0] if self.log else 0
            if newest > g.handled:
                kinds = {kind for number, kind in self.log if number > g.handled}
                g.handled = newest
                if "checkpoint" in kinds:
                    yield from self.snapshot(g, again=True)
            self.check(g.meeting)
            self.waits_for = lambda: bool(self.log) and self.log[-1][0] > g.handled
            yield

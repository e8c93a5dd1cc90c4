"""A worker of the simulation: the protocol of loop.py and handover.py around a copy of versions.

What decides is the real code: who keeps what (`Ownership`), what travels (`handover.plan`), who computes
what (`deal`). Where the real worker may be interrupted, the generator yields; everything between two yields
happens at once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elastrain.trainers.exchange.digests import Corrupt, differences
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.balance import Balance
from elastrain.trainers.membership.messages import Fault
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.membership.suspicion import Disagreement
from trainers.simulated_copy import Copy, Meeting, blocks_in
from trainers.simulated_lines import Broken, Dismissed, Halted, Lines, Wait

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
        number, self.idles = opening.generation, False
        try:
            generation = yield from self.form(opening)
            while True:
                yield from self.boundary(generation)
                yield from self.step(generation)
        except Boundary:
            return self.copy.report(number, "boundary")
        except Halted:
            return self.copy.report(number, "halted")
        except Broken:
            return self.copy.report(number, "broken")
        except Raised as error:
            return self.copy.report(number, "fault", error.fault)
        except Corrupt as error:
            self.copy.forget()
            return replace(self.copy.report(number, "corrupt"), corrupt=error.found)
        finally:
            if self.meeting is not None:
                self.meeting.present.discard(self.id)
            self.meeting = None

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
        generation = Generation(opening, meeting, rank, done, opening.balance())
        if opening.restore is not None:
            yield
            if self.world.is_damaged(opening.step):
                self.send(("bad_checkpoint", opening.step))
                raise Broken
            self.copy.load(opening.step, self.world.ledger.chain(opening.step), held)
            yield from self.meet(meeting, "barrier", 0, None)
            self.copy.layout = opening.generation
        else:
            yield from self.hand_over(generation, held)
        self.world.ledger.formed(self, opening, held)
        self.send(m.Sealed(self.id, opening.generation, self.copy.step))
        return generation

    def hand_over(self, g: Generation, held: set[int]) -> Wait:
        copy, opening, meeting, rank = self.copy, g.opening, g.meeting, g.rank
        survivors = opening.survivors()
        joins = rank not in survivors
        arrived = yield from self.meet(meeting, "buffers", 0, copy.buffers, survivors[:1] if joins else ())
        copy.buffers = arrived[survivors[0]] if joins else copy.buffers
        outgoing = blocks_in(t.blocks for t in meeting.transfers if t.source == rank)
        incoming = [t for t in meeting.transfers if t.target == rank]
        data = {b: (copy.params[b], copy.state[b], b in copy.rotten) for b in outgoing}
        if not opening.hold and copy.step < self.world.total and self.id in opening.whole:
            ahead = self.todo(g)[rank]
            with contextlib.suppress(Raised):  # it is told of in the step
                yield from self.compute(g, ahead[: self.world.rng.randint(0, len(ahead))])
        arrived = yield from self.meet(meeting, "chunks", 0, data, {t.source for t in incoming})
        for transfer in incoming:
            for block in range(*transfer.blocks):
                copy.params[block], copy.state[block], rotten = arrived[transfer.source][block]
                copy.rotten |= {block} if rotten else set()
                copy.layout = 0
        if len(opening.whole) < meeting.world:
            copy.whole = copy.whole and self.id in opening.whole
            yield from self.gather(meeting, rank, 0)
        yield from self.meet(meeting, "barrier", 0, None)
        copy.state = {b: copy.state[b] for b in held if b in copy.state}
        copy.rotten &= held
        copy.layout = opening.generation

    def step(self, g: Generation) -> Wait:
        copy, meeting = self.copy, g.meeting
        at, own = copy.step, meeting.ownership
        todo = self.todo(g)
        yield from self.compute(g, todo[g.rank])
        has = [[*done, *new] for done, new in zip(g.done, todo, strict=True)]
        self.world.ledger.dealt(has)
        yield from self.reduce(meeting, g.rank, at, [r for r, h in enumerate(has) if h])
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
                self.send(m.Began(self.id, at, microbatch))
                yield
                self.world.compute(self, at, microbatch)
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

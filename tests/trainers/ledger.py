"""What must hold in every world of the simulation, whatever happened to the workers (core: the invariants).

one generation: a step that is accepted comes from the newest generation
nothing lost:   accepted steps go up, none is lost or skipped, and back only in a rollback; a gap only where
                the words about it were lost with those who said them
redone:         a rollback happens only when some block's state is held by no survivor, or two copies differ
agreed:         once owner and buddy are known to differ, nothing that was in memory is gone on with
samples:        a step uses each of its microbatches once, in order; the chain over the steps shows it
same bits:      after re-forming every member has all parameters and buffers at one step, and what it keeps of
                the optimizer state too; in between members are never more than one step apart
two domains:    while it trains, every block's state exists on two nodes, in two groups, if there are two
fenced:         a worker that was removed adds nothing: no step, no metric, no checkpoint
patience:       never more than half of the members are removed for their silence at once
blame:          the user is blamed for exceptions or for processes that vanish at one place, nobody for chance
the end:        it comes, and the last step is saved when it does (that it comes is seen by simulation.py)

An invariant's name is the first word of what is said when it does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from trainers.simulated_copy import blocks_in, longer

if TYPE_CHECKING:
    from trainers.simulated_copy import Meeting
    from trainers.simulated_worker import SimulatedWorker


@dataclass
class Ledger:
    microbatches: int
    step: int = 0  # accepted
    highest: int = 0  # that was ever accepted
    generation: int = 0
    saved: set[int] = field(default_factory=set)
    evaluated: set[int] = field(default_factory=set)  # steps whose metrics were told
    distrusts: bool = False  # owner and buddy differ, as the machine knows
    unheard: bool = False  # words of a worker were lost since the last generation formed
    chains: list[int] = field(default_factory=lambda: [0])  # by step
    skipped: set[int] = field(default_factory=set)  # what followed them was never heard, but a later one
    removed: set[str] = field(default_factory=set)  # workers that the machine gave up
    counts: Counter[str] = field(default_factory=Counter)

    # ---- what workers do --------------------------------------------------------------------

    def chain(self, step: int) -> int:
        """Of an undisturbed run, after so many steps."""
        while len(self.chains) <= step:
            at = len(self.chains) - 1
            self.chains.append(longer(self.chains[at], at, range(self.microbatches)))
        return self.chains[step]

    def dealt(self, has: Sequence[Sequence[int]]) -> None:
        every = sorted(j for share in has for j in share)
        assert every == list(range(self.microbatches)), f"samples: microbatches are dealt as {has}"

    def record(self, meeting: Meeting, step: int, entries: Mapping[int, Json]) -> Json:
        """The commit record; the same for whoever merges it."""
        if step not in meeting.records:
            done = sorted(j for e in entries.values() for j in e["microbatches"])
            assert done == list(range(self.microbatches)), f"samples: step {step} was made of {done}"
            workers = meeting.opening.workers
            meeting.records[step] = {
                "step": step,
                "log": max(e["log"] for e in entries.values()),
                "generation": meeting.opening.generation,
                "microbatches": done,
                "workers": workers,
                "seconds": {workers[r]: [len(e["microbatches"]), e["seconds"]] for r, e in entries.items()},
            }
        return meeting.records[step]

    def applied(self, worker: SimulatedWorker, meeting: Meeting) -> None:
        workers = worker.world.workers
        steps = {w: workers[w].copy.step for w in meeting.present}
        assert max(steps.values()) - min(steps.values()) <= 1, f"same bits: members are at {steps}"

    def formed(self, worker: SimulatedWorker, opening: Opening, held: set[int]) -> None:
        copy, step, who = worker.copy, opening.step, worker.id
        assert copy.cursor is not None
        assert copy.step == step, f"same bits: {who} enters a generation of step {step} at {copy.step}"
        has = copy.whole and set(copy.params) == set(range(copy.blocks))
        assert has and set(copy.params.values()) == {step}, (
            f"same bits: {who} has parameters of {copy.params}"
        )
        assert copy.buffers == step, f"same bits: {who} has the buffers of step {copy.buffers}, not {step}"
        assert set(copy.state) == held, f"two domains: {who} keeps {set(copy.state)} instead of {held}"
        assert set(copy.state.values()) <= {step}, f"same bits: {who} keeps {copy.state} at step {step}"
        assert copy.cursor["chain"] == self.chain(step), f"samples: {who} has another chain at step {step}"

    def snapshot(self, worker: SimulatedWorker, meeting: Meeting, rank: int) -> None:
        copy = worker.copy
        found = {
            version
            for block in blocks_in(meeting.ownership.owned(rank))
            for version in (copy.params[block], copy.state[block])
        }
        assert found <= {copy.step}, f"same bits: a snapshot of step {copy.step} holds {found}"

    def kept_twice(self, workers: Sequence[SimulatedWorker], blocks: int, step: int) -> None:
        """Members of a generation that trains, at `step`: what is kept has to outlive any one domain."""
        for kind in ("node", "group", "id"):
            if len({getattr(w, kind) for w in workers}) < 2:
                continue
            for block in range(blocks):
                able = [w for w in workers if w.copy.can_reach(step, block)]
                domains = {getattr(w, kind) for w in able}
                assert len(domains) > 1, f"two domains: block {block} is kept on {domains} only"

    # ---- what the machine decides -----------------------------------------------------------

    def answered(self, event: m.Event, actions: Sequence[m.Action]) -> None:
        """What a removed worker says has no effect but that it is shut out."""
        worker = getattr(event, "worker", None)
        if worker in self.removed and not isinstance(event, m.Closed):
            effects = [a for a in actions if not isinstance(a, m.Fence)]
            assert not effects, f"fenced: {worker} was removed, and yet {event} leads to {effects}"

    def accept(self, action: m.Accept) -> None:
        record, generation, step = action.record, self.generation, action.step
        assert record["step"] == step - 1, f"samples: record {record} is accepted as step {step}"
        assert record["microbatches"] == list(range(self.microbatches)), f"samples: step {step} is {record}"
        of = record["generation"]
        assert of == generation, f"one generation: step {step} comes from {of}, {generation} is the newest"
        assert step > self.step, f"redone: step {step} is accepted again"
        if step != self.step + 1:
            assert self.unheard, f"nothing lost: step {step} is accepted after {self.step}"
            assert action.cursor is not None, f"nothing lost: nobody tells of the steps before {step}"
            self.skipped |= {*range(self.step, step)}
            self.counts["steps accepted by a later one"] += step - self.step - 1
        self.step = step
        self.highest = max(self.highest, self.step)
        self.counts["steps"] += 1

    def opened(
        self, action: m.Open, workers: Mapping[str, SimulatedWorker], previous: Sequence[str], saved: int
    ) -> None:
        assert action.generation == self.generation + 1
        assert len(set(action.members)) == len(action.members) > 0
        assert action.restore or not self.distrusts, "agreed: two copies differ, and it goes on with one"
        self.generation = action.generation
        self.counts["generations"] += 1
        if action.restore and saved < self.step:
            if self.step or any(workers[w].copy.cursor for w in previous if workers[w].alive):
                self.not_covered([workers[w] for w in previous])
        else:
            assert action.step == self.step, f"nothing lost: {self.step} is accepted, {action.step} is opened"
        self.distrusts = False

    def thinned(self, opening: Opening, action: m.Open, before: Ownership) -> None:
        """What is left out of an opening can be worked out: everybody learns what was reported."""
        said = {w: blocks_in(held) for w, held in opening.held.items()}
        said |= {w: blocks_in(before.held(rank)) for w, rank in opening.same.items()}
        reported = {w: blocks_in(held) for w, held in action.held.items()}
        known = {w for w, held in said.items() if held} | reported.keys()
        assert {w: said.get(w, set()) for w in known} == reported, f"same bits: {said} is said of {reported}"
        with_state = {opening.workers[r] for r in opening.survivors()}
        assert all(with_state >= {w} for w, held in reported.items() if held), "same bits: a survivor joins"
        assert with_state <= reported.keys(), "same bits: a joiner survives"

    def not_covered(self, survivors: Sequence[SimulatedWorker]) -> None:
        """survivors: members of the last generation that are here still, or were let go only now."""
        copies = [w.copy for w in survivors]
        useful = [c for c in copies if c.step == self.step or (c.step == self.step - 1 and c.reduced)]
        held = {block for c in useful for block in c.state}
        covered = useful and len(held) == useful[0].blocks
        assert self.distrusts or not covered, "redone: a rollback, though every block is held"
        self.counts["rollbacks"] += 1

    def restored(self, step: int) -> None:
        if step > self.highest:  # all who could have told of it are lost, but not what they saved
            assert self.unheard, f"nothing lost: step {step} is restored, which was never accepted"
        self.step = step

    def gave_up(self, step: int) -> None:
        """At the end nobody was left to save what came after `step`."""
        assert step < self.step, f"nothing lost: {step} is given up for {self.step}"
        self.step = step

    def evicted_together(self, lost: Sequence[Any], members: int) -> None:
        groups = {w.group for w in lost}
        few = len(lost) <= members / 2 or len(groups) <= 1
        assert few, f"patience: {len(lost)} of {members} are removed at once"

    def all_evaluated(self, due: Iterable[int]) -> None:
        """Rank 0 and its buddy tell of them; should both be lost, the next opening tells of the last one.
        Where the records of steps are lost with everybody who knew them, so are the evaluations between."""
        missing = set(due) - self.evaluated - self.skipped
        assert not missing, f"nothing lost: nothing was heard of the evaluations at steps {missing}"

    def ended(self, action: m.End, total: int, asked: set[str], faults: Mapping[str, Any]) -> None:
        self.counts[action.outcome] += 1
        text = action.message or ""
        if action.outcome not in ("cancelled", "failed"):
            assert action.step == self.step, f"the end: at step {action.step}, {self.step} is accepted"
            saved = max(self.saved, default=0)
            assert action.step <= saved, f"the end: at step {action.step}, {saved} is saved"
        match action.outcome:
            case "succeeded":
                assert self.step == total and total in self.saved, f"the end: at {self.step} of {total}"
            case "paused" | "cancelled":
                assert action.outcome in asked, f"the end: {action.outcome}, and nobody asked"
            case "preempted":
                assert "preempted" in asked or "fewer than" in text, "the end: preempted, and nobody asked"
            case "failed":
                self.counts[f"failed by {action.failed_by}"] += 1
                if action.failed_by == "user":
                    hurt = "vanished" in text or "was not done within" in text
                    least = faults["infrastructure"] >= 3 if hurt else faults["user"] >= 2
                    assert least, f"blame: the user gets it for {faults}: {text}"
                else:
                    assert action.failed_by == "infrastructure", f"blame: {text}"
                    assert faults["infrastructure"] + faults["no room"] >= 5, f"blame: {text}"

"""What must hold in every world of the simulation, whatever happened to the workers.

- Accepted steps go up one by one, each computed in one generation, and go back only in a rollback.
- A step uses each of its microbatches exactly once.
- Members of a generation are never more than one step apart.
- After re-forming, every member has the whole model at one step, and every block's optimizer state lies at
  that step on its owner and on its buddy.
- Never more than half of the members are removed for their silence at once.
- A rollback happens only when some block's state was held by no survivor.
- A worker that was removed changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastrain.trainers import messages as m
from elastrain.trainers.handover import Opening
from elastrain.trainers.messages import Json

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
    unheard: bool = False  # words of a worker were lost since the last generation formed
    removed: set[str] = field(default_factory=set)  # workers that the machine gave up
    counts: Counter[str] = field(default_factory=Counter)

    # ---- what workers do --------------------------------------------------------------------

    def dealt(self, has: Sequence[Sequence[int]]) -> None:
        every = sorted(j for share in has for j in share)
        assert every == list(range(self.microbatches)), f"microbatches are dealt as {has}"

    def record(self, meeting: Meeting, step: int, entries: Mapping[int, Json]) -> Json:
        """The commit record; the same for whoever merges it."""
        if step not in meeting.records:
            done = sorted(j for e in entries.values() for j in e["microbatches"])
            assert done == list(range(self.microbatches)), f"step {step} was made of microbatches {done}"
            log = max(e["log"] for e in entries.values())
            workers = meeting.opening.workers
            record = {
                "step": step,
                "log": log,
                "generation": meeting.opening.generation,
                "workers": workers,
                "seconds": {workers[r]: [len(e["microbatches"]), e["seconds"]] for r, e in entries.items()},
            }
            meeting.records[step] = record
        return meeting.records[step]

    def applied(self, worker: SimulatedWorker, meeting: Meeting) -> None:
        workers = worker.world.workers
        steps = {w: workers[w].copy.step for w in meeting.present}
        assert max(steps.values()) - min(steps.values()) <= 1, f"members are at {steps}"

    def formed(self, worker: SimulatedWorker, opening: Opening, held: set[int]) -> None:
        copy, step = worker.copy, opening.step
        assert copy.step == step, f"{worker.id} enters a generation of step {step} at {copy.step}"
        assert copy.whole and set(copy.params) == set(range(copy.blocks)), f"{worker.id} lacks parameters"
        assert set(copy.params.values()) == {step}, f"{worker.id} has parameters of {copy.params}"
        assert set(copy.state) == held and set(copy.state.values()) <= {step}, f"{worker.id}: {copy.state}"

    def snapshot(self, worker: SimulatedWorker, meeting: Meeting, rank: int) -> None:
        copy = worker.copy
        for first, last in meeting.ownership.owned(rank):
            for block in range(first, last):
                versions = {copy.params[block], copy.state[block]}
                assert versions == {copy.step}, (
                    f"snapshot of step {copy.step} holds block {block} of {versions}"
                )

    # ---- what the machine decides -----------------------------------------------------------

    def answered(self, event: m.Event, actions: Sequence[m.Action]) -> None:
        """What a removed worker says has no effect but that it is shut out."""
        worker = getattr(event, "worker", None)
        if worker in self.removed and not isinstance(event, m.Closed):
            effects = [a for a in actions if not isinstance(a, m.Fence)]
            assert not effects, f"{worker} was removed, and yet {event} leads to {effects}"

    def accept(self, action: m.Accept) -> None:
        record, generation = action.record, self.generation
        assert record["step"] == action.step - 1
        assert record["generation"] == generation, (
            f"step {action.step} is of generation {record['generation']}"
        )
        assert action.step > self.step, f"step {action.step} is accepted again"
        if action.step != self.step + 1:
            assert self.unheard, f"step {action.step} is accepted after {self.step}"
            self.counts["steps accepted by a later one"] += action.step - self.step - 1
        self.step = action.step
        self.highest = max(self.highest, self.step)
        self.counts["steps"] += 1

    def opened(self, action: m.Open, workers: Mapping[str, SimulatedWorker], previous: Sequence[str]) -> None:
        assert action.generation == self.generation + 1
        assert len(set(action.members)) == len(action.members) > 0
        self.generation = action.generation
        self.counts["generations"] += 1
        if action.restore:
            if self.step or any(workers[w].copy.cursor for w in previous if workers[w].alive):
                self.not_covered([workers[w] for w in previous])
        else:
            assert action.step == self.step, f"step {self.step} is accepted, {action.step} is opened"

    def not_covered(self, survivors: Sequence[SimulatedWorker]) -> None:
        """survivors: members of the last generation that are here still, or were let go only now."""
        copies = [w.copy for w in survivors]
        useful = [c for c in copies if c.step == self.step or (c.step == self.step - 1 and c.reduced)]
        held = {block for c in useful for block in c.state}
        assert not useful or len(held) < useful[0].blocks, "a rollback, though every block is held"
        self.counts["rollbacks"] += 1

    def restored(self, step: int) -> None:
        if step > self.highest:  # all who could have told of it are lost, but not what they saved
            assert self.unheard, f"step {step} is restored, which was never accepted"
        self.step = step

    def gave_up(self, step: int) -> None:
        """At the end nobody was left to save what came after `step`."""
        assert step < self.step
        self.step = step

    def evicted_together(self, lost: Sequence[Any], members: int) -> None:
        groups = {w.group for w in lost}
        assert len(lost) <= members / 2 or len(groups) <= 1, f"{len(lost)} of {members} are removed at once"

    def all_evaluated(self, due: Iterable[int]) -> None:
        """Rank 0 tells of them, so they may be lost with it; otherwise never."""
        missing = set(due) - self.evaluated
        assert not missing, f"nothing was heard of the evaluations at steps {missing}"

    def ended(self, action: m.End, total: int, asked: set[str], faults: Mapping[str, Any]) -> None:
        self.counts[action.outcome] += 1
        if action.outcome not in ("cancelled", "failed"):
            assert action.step == self.step, f"ends at step {action.step}, {self.step} is accepted"
            assert action.step <= max(self.saved, default=0), f"ends at step {action.step}, not saved"
        match action.outcome:
            case "succeeded":
                assert self.step == total and total in self.saved, f"ends at {self.step} of {total}"
            case "paused" | "cancelled":
                assert action.outcome in asked
            case "preempted":
                assert "preempted" in asked or "fewer than" in (action.message or "")
            case "failed":
                self.counts[f"failed by {action.failed_by}"] += 1
                if action.failed_by == "user":
                    vanished = "vanished" in (action.message or "")
                    assert vanished or faults["user"], f"blames the user: {action.message}"
                else:
                    assert action.failed_by == "infrastructure", action.message
                    assert faults["infrastructure"] >= 5, action.message

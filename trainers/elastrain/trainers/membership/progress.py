"""How far the job is, as the membership machine knows it: accepted steps, and what is saved. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.agreement import holders, resume_point
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.membership.roster import Group, Worker


@dataclass
class Progress:
    generation: int = 0
    step: int = 0  # accepted steps
    record: tuple[int, Json] | None = None  # (step, the record that led to it)
    begun: bool = False  # this attempt has trained already
    blocks: int = 0  # size of the model
    saved_step: int | None = None
    checkpoint_wanted: int | None = None  # of this step or a later one
    rewind: m.Rewind | None = None  # training went wrong by itself: it goes on from an older checkpoint
    distrusted: bool = False  # copies of some state differ: what is in memory is not gone on with

    def accept(self, step: int, record: Json, cursor: Json | None = None) -> m.Accept | None:
        """cursor: at `step`, for the case that records before this one were never heard."""
        if step <= self.step:
            return None
        accepted = m.Accept(step, record, cursor if step > self.step + 1 else None)
        self.step, self.record, self.begun = step, (step, record), True
        return accepted

    def restored(self, step: int, own: bool = True) -> m.Say | None:
        """Back at `step`, that of a checkpoint or 0: nothing newer is left."""
        lost, rewind = self.step, self.rewind
        self.step, self.record, self.saved_step = step, None, (step or None) if own else None
        if self.checkpoint_wanted is not None:
            self.checkpoint_wanted = min(self.checkpoint_wanted, step)
        lost_or_not = "were lost together" if not self.distrusted else "did not agree"
        self.distrusted, self.rewind = False, None
        if rewind is not None:
            said = {"from": lost, "to": step, "rollback": rewind.number, "why": rewind.why}
            return m.Say("rollback", f"{rewind.why}: back from step {lost} to {step}", said)
        if not self.begun or step >= lost:
            return None
        text = f"owner and buddy of some state {lost_or_not}: back from step {lost} to {step}"
        return m.Say("rollback", text, {"from": lost, "to": step})

    def saved(self, step: int) -> None:
        self.saved_step = max(step, self.saved_step or 0)
        if self.checkpoint_wanted is not None and step >= self.checkpoint_wanted:
            self.checkpoint_wanted = None

    @property
    def all_saved(self) -> bool:
        return (self.saved_step or 0) >= self.step

    # ---- what the survivors' reports are worth ----------------------------------------------

    def holders(self, workers: Iterable[Worker]) -> Counter[int]:
        """How many can go on at the accepted step with each block."""
        return holders((w.report for w in workers if w.report is not None), self.step, self.record)

    def covered(self, held: Counter[int]) -> bool:
        return self.blocks > 0 and len(held) == self.blocks

    def free_to_leave(
        self,
        groups: Sequence[Group],
        survivors: Sequence[Worker],
        joiners: Sequence[Worker],
        minimum: int,
        now: float,
    ) -> list[Group]:
        """Of the groups that are to leave those whose state others hold too. `minimum` workers must be left,
        unless they have to go soon; and if everybody leaves, nobody does so before there is a checkpoint."""
        leaving = {group.id for group in groups}
        if not joiners and all(w.group in leaving for w in survivors):
            return []
        held = self.holders(survivors)
        room = sum(not w.server for w in (*survivors, *joiners)) - minimum
        safe, free = self.covered(held), []
        for group in groups:
            theirs = self.holders(w for w in survivors if w.group == group.id)
            alone = safe and any(held[block] == count for block, count in theirs.items())
            needed = 0 if group.server else len(group.workers)
            if not alone and (needed <= room or group.urgent(now)):
                free.append(group)
                held -= theirs
                room -= needed
        return free

    def opening(self, members: Sequence[Worker]) -> m.Open:
        """Where the next generation begins. Its number and members are for the caller to fill in."""
        reports = {w.id: w.report for w in members if w.report is not None}
        self.rewind = next((r.rewind for r in reports.values() if r.rewind is not None), self.rewind)
        if self.covered(self.holders(members)) and not (self.distrusted or self.rewind):
            return resume_point(reports, self.step, self.record)
        # nothing in memory can continue the job
        return m.Open(0, (), self.step, restore=True, rewind=self.rewind)

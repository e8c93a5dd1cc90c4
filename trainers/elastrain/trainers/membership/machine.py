"""Who trains with whom: the membership machine. Events in, actions out; no I/O, no clock, no threads.

    WAITING ──enough workers are warm──▶ FORMING ──every member sealed──▶ STEADY
                                           ▲  │                             │
                        every survivor     │  │ a member is gone            │ a member is gone or reports
                        reported, >= min   │  ▼                             │
                                        COLLECTING ◀────────────────────────┘
                                             └─▶ ENDED (from anywhere: idle and saved, cancelled, failed)

One generation is a fixed set of members in rank order. It ends when a member is gone, a collective breaks,
or everyone stopped at a boundary because a command of the log said so. Then every survivor reports what it
holds, and the reports alone (agreement.py) decide where the next generation begins: at the newest step that
any of them, or a stored commit record, proves; or at a checkpoint, if nobody holds some of the state.

Words on one connection keep their order; words of different workers come in any order. So a report may come
before records that rank 0 has sent long ago: steps are accepted from reports only once all of them are here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.fleet import Fleet
from elastrain.trainers.membership.fleet import Policy as Policy
from elastrain.trainers.membership.generation import Generation
from elastrain.trainers.membership.generation import Phase as Phase
from elastrain.trainers.membership.leaving import Leavers, has_to_hold
from elastrain.trainers.membership.messages import Action, Event, Json, Report
from elastrain.trainers.membership.progress import Progress
from elastrain.trainers.membership.roster import State, Worker
from elastrain.trainers.membership.stall import Stall

# Nothing follows from one of these alone. They come from every worker all the time, so they cost O(1).
_NOTED = (m.Beat, m.Began, m.Waits, m.Works, m.Probed, m.Committed)


class Machine:
    """Feed it events with `handle`; carry out the actions in order."""

    def __init__(self, policy: Policy) -> None:
        self._out: list[Action] = []
        self.progress = Progress()
        self.fleet = Fleet(policy, self.progress, self._out)
        self.roster, self.stall = self.fleet.roster, Stall(self.fleet)
        self.phase = Phase.WAITING
        self.generation = Generation()
        self.log_number = 0
        self.finishing: m.Finish | None = None
        self.finish_sent = False
        self.cause = "start"
        self.below_since: float | None = None

    # ---- the one door -----------------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Take one event in; return what to do, in order."""
        if self.phase is not Phase.ENDED:
            self._take(event)
            if not isinstance(event, _NOTED):
                self._advance()
        out, self._out[:] = self._out.copy(), []
        return out

    def _take(self, event: Event) -> None:
        match event:
            case m.Tick(now):
                self.fleet.tick(now, awaited=self.generation.waits or self.phase is Phase.COLLECTING)
                if why := self.stall.tick(self.generation):
                    self._halt(why)
            case m.Registered():
                self.fleet.registered(event)
            case m.Closed(worker):
                self.fleet.closed(worker)
            case m.GroupGone():
                self.fleet.group_gone(event)
            case m.Notice():
                self.fleet.notice(event)
            case m.Scale(minimum, target):
                self.fleet.scale(minimum, target)
            case m.Finish(why, message):
                self.finishing = self.finishing or event
                self.fleet.closing = True
                if why == "cancelled":
                    self._end(why, message=message)
            case m.CheckpointWanted():
                self._want_checkpoint()
            case m.CheckpointSaved(step):
                self.progress.saved(step)
            case m.Restored(step, own):
                self.generation.opened_at = step
                rollback = self.progress.restored(step, own)
                if rollback is not None:
                    self._out.append(rollback)
            case _:
                known = self.roster.workers.get(event.worker)
                if known is not None and known.counts:  # what a removed worker still says changes nothing
                    self.stall.heard(known, event, self.generation.number)
                    self._heard(known, event)

    def _heard(self, worker: Worker, event: Event) -> None:
        match event:
            case m.Began(_, step, microbatch):
                worker.begin(step, microbatch)
            case m.Warm(_, blocks):
                self.progress.blocks = blocks
                self.fleet.warm(worker)
            case m.StartFailed(_, fault):
                self.fleet.raised(worker, fault)
            case m.Reported(_, report) if report.generation == self.generation.number and not worker.report:
                self._reported(worker, report)
            case m.Waits() | m.Committed() | m.Sealed() | m.Idle():
                if event.generation == self.generation.number:
                    self._heard_in_generation(worker, event)
            case _:
                pass  # a beat, or a word of a generation that is over

    def _heard_in_generation(self, worker: Worker, event: m.Waits | m.Committed | m.Sealed | m.Idle) -> None:
        generation = self.generation
        match event:
            case m.Waits():
                generation.waits = True
            case m.Committed(_, _, step, record):
                generation.waits = False
                self._accept(step, record)
            case m.Sealed() if self.phase is Phase.FORMING:
                generation.awaited.discard(worker.id)
            case m.Idle():
                worker.idle = True
                if self.phase is Phase.STEADY:
                    generation.awaited.discard(worker.id)
            case _:
                pass

    def _accept(self, step: int, record: Json, cursor: Json | None = None) -> None:
        accepted = self.progress.accept(step, record, cursor)
        if accepted is not None:
            self._out.append(accepted)
            self.generation.commit(self.roster, record)

    def _want_checkpoint(self) -> None:
        self.progress.checkpoint_wanted = self.progress.step
        if self.phase is Phase.STEADY:
            self._command("checkpoint")

    def _command(self, kind: Literal["regroup", "checkpoint", "finish"]) -> None:
        self.log_number += 1
        self._out.append(m.Command(self.log_number, kind))

    # ---- moving on --------------------------------------------------------------------------

    def _advance(self) -> None:
        if self.fleet.verdict is not None:
            by, text = self.fleet.verdict
            self._end("failed", by, text)
        elif self.fleet.lost:
            self._halt(f"{self.fleet.lost[0].id} lost")
            self.fleet.lost.clear()
        match self.phase:
            case Phase.WAITING if self.finishing is not None:
                self._end(self.finishing.why, message=self.finishing.message)
            case Phase.WAITING if members := self.fleet.first_members():
                self._open(members)
            case Phase.FORMING if not self.generation.awaited:
                self._formed()
            case Phase.COLLECTING if not self.generation.awaited:
                self._try_open()
            case _:
                pass
        if self.phase is Phase.STEADY:
            self._steady()

    def _steady(self) -> None:
        """End when everybody idles at one boundary and what was computed is saved; ask for one if needed: one
        entry in the log makes everyone stop at the same boundary."""
        generation, joiners = self.generation, self.fleet.joiners()
        leavers = Leavers.of(generation, self.roster, self.fleet.now)
        if leavers.cannot_wait(generation, joiners, self.finishing is not None):
            self._halt("the time after a notice runs out")
        elif not generation.awaited and self.progress.all_saved:
            self._all_done(leavers)
        elif self.finishing is not None:
            if not self.finish_sent:
                self.finish_sent = True
                self._command("finish")
        elif not (generation.regroup_sent or generation.somebody_idles):
            may_leave = leavers.may_go(joiners, self.policy)
            if joiners or may_leave:
                generation.regroup_sent = True
                self.cause = "leave" if may_leave else "join"
                self._command("regroup")
            elif not leavers.stay and not generation.saves:  # in case nobody comes in time
                generation.saves = True
                self._want_checkpoint()

    def _all_done(self, leavers: Leavers) -> None:
        """Everybody idles, and what they computed is saved."""
        if self.generation.hold and self.finishing is None:
            self.fleet.let_go(*leavers.groups)  # others go on from the checkpoint
            self._halt("all members left")
        elif (done := self.finishing) is not None:
            self._end(done.why, message=done.message)
        else:
            self._end("succeeded")

    # ---- a generation ends ------------------------------------------------------------------

    def _reported(self, worker: Worker, report: Report) -> None:
        generation = self.generation
        worker.report = report
        if self.phase is not Phase.COLLECTING:
            self.phase = Phase.COLLECTING
            generation.collect()
        generation.awaited.discard(worker.id)
        if report.fault is not None:
            rank, alone = generation.members.index(worker), len(generation.survivors) == 1
            self.fleet.raised(worker, report.fault, rank, alone=alone)
        elif report.corrupt is not None:
            self.fleet.disagreed(report.corrupt)
        if report.why in ("broken", "corrupt", "rewound"):
            self._out += generation.halt(f"{worker.id}: {report.detail}")

    def _halt(self, why: str) -> None:
        """The generation is over for everybody."""
        self.cause, self.phase = why, Phase.COLLECTING
        self.generation.collect()
        self._out += self.generation.halt(why)

    # ---- the next one begins ----------------------------------------------------------------

    def _try_open(self) -> None:
        survivors, proof = self.generation.survivors, self.generation.proof
        if proof is not None and proof.record is not None:
            self._accept(proof.step, proof.record, proof.cursor)
        joiners = self.fleet.joiners() if self.finishing is None else []
        minimum, leaving, now = self.policy.min, self.roster.leaving(), self.fleet.now
        self.fleet.let_go(*self.progress.free_to_leave(leaving, survivors, joiners, minimum, now))
        keepers, members = self.generation.keepers, [*self.generation.survivors, *joiners]
        enough = self.policy.suffice(members)
        hold = has_to_hold(members, self.roster, enough, self.finishing is not None, now)
        if enough or (hold and keepers) or self._waited_enough(bool(keepers)):
            self._open(members, hold or all(w.server for w in members))  # by themselves they only save

    def _waited_enough(self, anyone: bool) -> bool:
        """Below min. After `wait_s` the survivors save what they hold, and the attempt ends."""
        self.below_since = self.fleet.now if self.below_since is None else self.below_since
        if self.finishing is None and self.fleet.now - self.below_since < self.policy.wait_s:
            return False
        text = f"fewer than {self.policy.min} workers for {self.policy.wait_s:.0f} s"
        self.finishing = self.finishing or m.Finish("preempted", text)
        self.fleet.closing = True
        if not anyone:
            self._end(self.finishing.why, message=self.finishing.message)
        return anyone

    def _open(self, members: list[Worker], hold: bool = False) -> None:
        members.sort(key=lambda worker: not worker.server)  # the servers have the first ranks
        opened = self.progress.opening(members)
        number, ids = self.generation.number + 1, tuple(w.id for w in members)
        self.generation = Generation(number, tuple(members), opened.step, set(ids), hold=hold)
        self.progress.generation = number
        for worker in members:
            worker.state, worker.report, worker.idle = State.ACTIVE, None, False
        self.phase, self.below_since, self.cause = Phase.FORMING, None, self.cause or "re-forming"
        self._out.append(replace(opened, generation=number, members=ids, hold=hold, cause=self.cause))

    def _formed(self) -> None:
        """Every member has sealed."""
        self.phase, self.progress.begun = Phase.STEADY, True
        self.generation.awaited = {w.id for w in self.generation.members if not w.idle}
        if self.finish_sent:  # a generation knows its own log only: what still waits is said again
            self._command("finish")
        if self.progress.checkpoint_wanted is not None:
            self._command("checkpoint")
        self.fleet.joined(self.generation.members, self.generation.opened_at)
        self._out.append(self.generation.formed(self.cause))
        self.cause = ""

    # ---- the end, and what the shell looks at -----------------------------------------------

    def _end(self, outcome: m.Ending, by: m.Blamed | None = None, message: str | None = None) -> None:
        if self.phase is not Phase.ENDED:
            self.phase = Phase.ENDED
            present = tuple(w.id for w in self.roster.workers.values() if w.connected)
            self._out += [m.Dismiss(present, outcome)] if present else []
            if outcome in ("paused", "preempted") and not self.progress.all_saved:
                lost = self.progress.restored(self.progress.saved_step or 0)
                self._out += [lost] if lost is not None else []  # nobody was left to save the newest steps
            self._out.append(m.End(outcome, self.progress.step, by, message))

    @property
    def policy(self) -> Policy:
        return self.fleet.policy

    @property
    def members(self) -> tuple[str, ...]:
        """Of the newest generation, in rank order."""
        return self.generation.ids

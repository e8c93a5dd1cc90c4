"""Who trains with whom: the membership machine. Events in, actions out; no I/O, no clock, no threads.

    WAITING ──enough workers are warm──▶ FORMING ──every member sealed──▶ STEADY
       ▲                                   │  ▲                             │
       │ fewer than min                    │  └──every survivor reported──┐ │ a member is gone or reports
       └──────────── COLLECTING ◀──a member is gone────────────────────────┴─┘
                         └─▶ ENDED (from anywhere: idle and saved, cancelled, failed)

One generation is a fixed set of members in rank order. It ends when a member is gone, a collective breaks,
or everyone stopped at a boundary because a command of the log said so. Then every survivor reports what it
holds, and the reports alone decide where the next generation begins:

- The newest step that any report, or a stored commit record, proves. Members one step behind get the record.
- If every block of optimizer state is held by a survivor, nothing is lost. If not: restore.

Invariant: a commit record exists only if every member of that generation held its reduced chunks in memory,
so members are never more than one step apart, and one survivor of each chunk can apply the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from elastrain.trainers import messages as m
from elastrain.trainers.agreement import covered, resume_point
from elastrain.trainers.blame import Blame
from elastrain.trainers.messages import Action, Event, Json, Report
from elastrain.trainers.roster import Group, Roster, State, Worker


class Phase(StrEnum):
    WAITING = "waiting"
    FORMING = "forming"
    STEADY = "steady"
    COLLECTING = "collecting"
    ENDED = "ended"


@dataclass(frozen=True)
class Policy:
    min: int
    target: int
    per_group: int = 1
    heartbeat_s: float = 2.0
    silence: int = 10  # heartbeats missed until a worker is removed though nobody waits for it
    wait_s: float = 60.0  # below min for so long: checkpoint and give up the attempt
    start_timeout_s: float = 300.0


class Machine:
    """Feed it events with `handle`; carry out the actions in order."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.roster = Roster(policy.per_group)
        self.blame = Blame()
        self.phase = Phase.WAITING
        self.now = 0.0
        self.generation = 0
        self.members: tuple[str, ...] = ()
        self.step = 0  # accepted steps
        self.record: tuple[int, Json] | None = None  # (step, the record that led to it)
        self.sealed_once = False
        self.blocks = 0
        self.saved_step: int | None = None
        self.log_number = 0
        self.regroup_sent = False
        self.finishing: m.Finish | None = None
        self.finish_sent = False
        self.checkpoint_wanted = False
        self.cause = "start"
        self.below_since: float | None = None
        self._clock: float | None = None
        self._out: list[Action] = []

    # ---- the one door -----------------------------------------------------------------------

    def handle(self, event: Event) -> list[Action]:
        """Take one event in; return what to do, in order."""
        if self.phase is not Phase.ENDED:
            self._take(event)
        if self.phase is not Phase.ENDED:
            self._advance()
        out, self._out = self._out, []
        return out

    def _take(self, event: Event) -> None:
        match event:
            case m.Tick(now):
                self._tick(now)
            case m.Beat(worker):
                self._heard(worker)
            case m.Began(worker, step, microbatch):
                self._heard(worker)
                self.roster.workers[worker].began = (step, microbatch)
            case m.Waits(worker, generation):
                self._heard(worker)
                self.roster.workers[worker].waits = generation == self.generation
            case m.Registered():
                self._registered(event)
            case m.Warm(worker, blocks):
                self._warm(worker, blocks)
            case m.StartFailed(worker, fault):
                self._start_failed(worker, fault)
            case m.Committed(worker, generation, step, record):
                if generation == self.generation:
                    self._heard(worker)
                    self._accept(step, record)
            case m.Reported(worker, report):
                self._reported(worker, report)
            case m.Sealed(worker, generation, step):
                self._sealed(worker, generation, step)
            case m.Idle(worker, generation, step):
                if generation == self.generation:
                    self.roster.workers[worker].idle_at = step
            case m.Closed(worker):
                self._closed(worker)
            case m.GroupGone(group, causes):
                self._group_gone(group, causes)
            case m.Scale(minimum, target):
                self._scale(minimum, target)
            case m.Finish():
                self._finish(event)
            case m.CheckpointWanted():
                self.checkpoint_wanted = True
                if self.phase is Phase.STEADY:
                    self._command("checkpoint")
            case m.CheckpointSaved(step):
                self.saved_step, self.checkpoint_wanted = max(step, self.saved_step or 0), False

    # ---- what is heard ----------------------------------------------------------------------

    def _heard(self, worker: str) -> None:
        self.roster.workers[worker].last_beat = self.now

    def _tick(self, now: float) -> None:
        # A driver that was frozen for a minute must not find everybody dead: time advances by one beat at most.
        step = min(max(now - self._clock, 0.0), self.policy.heartbeat_s) if self._clock is not None else 0.0
        self.now += step
        self._clock = now
        self._evict_silent()
        for group in self.roster.serving():
            group.age_s += step
            unborn = [w for w in self.roster.peers(group.id) if w.state is State.STARTING]
            if unborn and group.age_s > self.policy.start_timeout_s:
                self._remove(
                    unborn[0], f"not ready after {self.policy.start_timeout_s:.0f} s", vanished=False
                )

    def _evict_silent(self) -> None:
        """Busy is not dead: the silent are removed when a peer waits for them, or after ten beats."""
        beat = self.policy.heartbeat_s
        members = [self.roster.workers[w] for w in self.members]
        awaited = any(w.waits or w.report for w in members) or self.phase is Phase.COLLECTING
        silent = [
            w
            for w in self.roster.workers.values()
            if w.connected
            and w.state in (State.ACTIVE, State.LEAVING, State.READY)
            and self.now - w.last_beat
            > (2 * beat if awaited and w.id in self.members else self.policy.silence * beat)
        ]
        for worker in silent[: max(1, len(members) // 2)]:
            self._out.append(m.Fence(worker.id, f"silent for {self.now - worker.last_beat:.1f} s"))
            self._remove(worker, "no heartbeat", vanished=False)

    def _registered(self, event: m.Registered) -> None:
        worker = self.roster.workers.get(event.worker)
        if worker is None or worker.connected or worker.state is not State.STARTING:
            self._out.append(m.Fence(event.worker, "not expected: unknown, here already, or removed"))
            return
        worker.connected, worker.node, worker.pid, worker.last_beat = True, event.node, event.pid, self.now
        self._say("worker.started", f"{worker.id} started on {event.node}", worker)

    def _warm(self, worker_id: str, blocks: int) -> None:
        worker = self.roster.workers[worker_id]
        self._heard(worker_id)
        if worker.state is State.STARTING:
            worker.state, self.blocks = State.READY, blocks
            self._say("worker.ready", f"{worker.id} is ready", worker)

    def _start_failed(self, worker_id: str, fault: m.Fault) -> None:
        if self.blame.raised(worker_id, fault, alone=False):
            self._fail("user", f"{fault.error}\n\n{fault.traceback}")
            return
        self._remove(self.roster.workers[worker_id], fault.error, vanished=False)

    def _accept(self, step: int, record: Json) -> None:
        if step > self.step:
            self.step, self.record = step, (step, record)
            for worker in self.members:
                self.roster.groups[self.roster.workers[worker].group].committed = True
            self._out.append(m.Accept(step, record))

    def _reported(self, worker_id: str, report: Report) -> None:
        worker = self.roster.workers[worker_id]
        if report.generation != self.generation or worker_id not in self.members or not worker.connected:
            return
        self._heard(worker_id)
        worker.report = report
        if report.record is not None:
            self._accept(report.step, report.record)
        if self.phase in (Phase.STEADY, Phase.FORMING):
            self.phase = Phase.COLLECTING
        if report.fault is not None:
            self._faulted(worker, report.fault)
        elif report.why == "broken":
            self._halt(f"{worker_id}: {report.detail}")

    def _faulted(self, worker: Worker, fault: m.Fault) -> None:
        alone = len([w for w in self.members if self.roster.workers[w].connected]) == 1
        where = f"rank {self.members.index(worker.id)}, step {fault.step}"
        if fault.microbatch is not None:
            where += f", microbatch {fault.microbatch}"
        if self.blame.raised(worker.id, fault, alone):
            by: Literal["user", "service"] = "service" if fault.phase == "internal" else "user"
            self._fail(by, f"{fault.error}\n(on {worker.id}, {where})\n\n{fault.traceback}")
        elif alone:
            self._say("worker.error", f"{worker.id} raised {fault.error}; it tries once more", worker)
            self._halt("an exception in user code")
        else:  # another worker computes the same: if it raises there too, it is the user's
            self._remove(worker, f"raised {fault.error} ({where})", vanished=False)

    def _sealed(self, worker_id: str, generation: int, step: int) -> None:
        if generation != self.generation or self.phase is not Phase.FORMING:
            return
        self._heard(worker_id)
        self.roster.workers[worker_id].sealed = True
        if not all(self.roster.workers[w].sealed for w in self.members):
            return
        self.phase, self.sealed_once, self.regroup_sent = Phase.STEADY, True, False
        self.step = step
        if self.finish_sent:  # a generation knows its own log only: what still waits is said again
            self._command("finish")
        if self.checkpoint_wanted:
            self._command("checkpoint")
        self._out.append(
            m.Say(
                "generation.formed",
                f"generation {generation}: {', '.join(self.members)}",
                {"generation": generation, "workers": list(self.members), "step": step, "cause": self.cause},
            )
        )
        self.cause = ""

    # ---- who is gone ------------------------------------------------------------------------

    def _closed(self, worker_id: str) -> None:
        worker = self.roster.workers[worker_id]
        worker.connected = False
        if worker.state in (State.READY, State.ACTIVE, State.STARTING):
            group = self.roster.groups[worker.group]
            self._remove(worker, "its connection closed", vanished=not group.stopping)

    def _remove(self, worker: Worker, why: str, vanished: bool) -> None:
        """A worker is gone for us. Its whole group leaves with it, and is ended for certain."""
        group = self.roster.groups[worker.group]
        verdict = self.blame.vanish(worker.id, worker.began) if vanished else None
        for peer in self.roster.peers(worker.group):
            if peer.state not in (State.LOST, State.ENDED):
                peer.state = State.LOST
                self._say(
                    "worker.lost",
                    f"{peer.id} is lost: {why}"
                    if peer is worker
                    else f"{peer.id} leaves with its group: {worker.id} is lost",
                    peer,
                    cause=why,
                )
        if not group.stopping:
            group.stopping = True
            self._out.append(m.StopGroup(group.id, kill=True))
            if self.roster.charge(group, why, self.now):
                causes = "; ".join(self.roster.slots[group.slot].causes)
                self._fail(
                    "infrastructure",
                    f"group slot {group.slot} failed 5 times without a committed step: {causes}",
                )
        if verdict is not None:
            self._fail("user", verdict)
        if set(group.workers) & set(self.members) and self.phase not in (Phase.WAITING, Phase.ENDED):
            self.cause = f"{worker.id} lost"
            self._halt(f"{worker.id} is gone")

    def _halt(self, why: str) -> None:
        self.phase = Phase.COLLECTING
        survivors = tuple(w.id for w in self._survivors() if w.report is None)
        if survivors:
            self._out.append(m.Halt(self.generation, survivors, why))

    def _group_gone(self, group_id: str, causes: Mapping[str, str]) -> None:
        group = self.roster.groups[group_id]
        group.ended = True
        for worker in self.roster.peers(group_id):
            cause = causes.get(worker.id)
            if worker.state not in (State.LOST, State.ENDED) and not group.leaving:
                self._remove(worker, cause or "its process ended", vanished=not group.stopping)
            elif cause and worker.state is State.LOST:
                self._say("worker.exited", f"{worker.id}: {cause}", worker, cause=cause)
            worker.connected = False
            if worker.state is State.LEAVING:
                worker.state = State.ENDED

    # ---- what is wanted ---------------------------------------------------------------------

    def _scale(self, minimum: int, target: int) -> None:
        self.policy = replace(self.policy, min=minimum, target=target)

    def _finish(self, event: m.Finish) -> None:
        if event.why == "cancelled":
            self._end("cancelled", message=event.message)
        elif self.finishing is None:
            self.finishing = event

    def _command(self, kind: Literal["regroup", "checkpoint", "finish"]) -> None:
        self.log_number += 1
        self._out.append(m.Command(self.log_number, kind))

    # ---- moving on --------------------------------------------------------------------------

    def _advance(self) -> None:
        self._balance()
        match self.phase:
            case Phase.WAITING:
                self._try_start()
            case Phase.COLLECTING:
                self._try_open()
            case Phase.STEADY:
                self._try_end()
                if self.phase is Phase.STEADY:
                    self._ask_boundary()
            case _:
                pass

    def _balance(self) -> None:
        """As many groups as wanted: start the missing, let the surplus leave."""
        if self.finishing is not None:
            return
        wanted = -(-self.policy.target // self.policy.per_group)
        for slot in list(self.roster.missing_slots(wanted, self.now)):
            group = self.roster.add_group(slot)
            self._out.append(m.StartGroup(group.id, group.workers))
        for group in self.roster.surplus(wanted):
            group.leaving = True
            if not set(group.workers) & set(self.members):
                self._let_go(group)

    def _let_go(self, group: Group) -> None:
        group.stopping = True
        for worker in self.roster.peers(group.id):
            worker.state = State.LEAVING
            self._say("worker.left", f"{worker.id} left", worker)
        self._out.append(m.Dismiss(group.workers, "no longer needed"))
        self._out.append(m.StopGroup(group.id, kill=False))

    def _ready(self) -> list[Worker]:
        """Joiners: warm, and every worker of their group with them."""
        return [
            w
            for w in self.roster.workers.values()
            if w.state is State.READY
            and w.connected
            and not self.roster.groups[w.group].leaving
            and all(p.state is State.READY for p in self.roster.peers(w.group))
        ]

    def _survivors(self) -> list[Worker]:
        members = [self.roster.workers[w] for w in self.members]
        return [w for w in members if w.connected and w.state is State.ACTIVE]

    def _try_start(self) -> None:
        if self.finishing is not None:
            self._end(self.finishing.why, message=self.finishing.message)
        elif len(self._ready()) >= self.policy.min:
            self._open([], [])

    def _ask_boundary(self) -> None:
        """One entry in the log makes everyone stop at the same boundary."""
        if self.finishing is not None:
            if not self.finish_sent:
                self.finish_sent = True
                self._command("finish")
            return
        leaving = any(self.roster.groups[self.roster.workers[w].group].leaving for w in self.members)
        idle = any(self.roster.workers[w].idle_at is not None for w in self.members)
        if (leaving or self._ready()) and not self.regroup_sent and not idle:
            self.regroup_sent = True
            self.cause = "leave" if leaving else "join"
            self._command("regroup")

    def _try_end(self) -> None:
        """Everyone idles at one boundary, and what was computed is saved: the attempt is over."""
        idle = [self.roster.workers[w].idle_at for w in self.members]
        if any(step is None for step in idle) or (self.saved_step or 0) < self.step:
            return
        if self.finishing is None:
            self._end("succeeded")
        else:
            self._end(self.finishing.why, message=self.finishing.message)

    def _try_open(self) -> None:
        survivors = self._survivors()
        if any(w.report is None for w in survivors):
            return
        leaving = [g for g in self.roster.running() if g.leaving and not g.stopping]
        stay = [w for w in survivors if w.group not in {g.id for g in leaving}]
        if survivors and not self._covered(stay):  # owner and buddy both leave: one group at a time
            leaving = leaving[:1]
            stay = [w for w in survivors if w.group not in {g.id for g in leaving}]
            if not self._covered(stay) or not stay:
                leaving, stay = [], survivors
        joiners = self._ready() if self.finishing is None else []
        if len(stay) + len(joiners) < self.policy.min and not self._waited_enough(bool(stay)):
            return
        for group in leaving:
            self._let_go(group)
        if stay or joiners:
            self._open(stay, joiners)

    def _waited_enough(self, anyone: bool) -> bool:
        """Below min. After `wait_s` the survivors save what they hold, and the attempt ends."""
        if self.below_since is None:
            self.below_since = self.now
        if self.finishing is None and self.now - self.below_since < self.policy.wait_s:
            return False
        text = f"fewer than {self.policy.min} workers for {self.policy.wait_s:.0f} s"
        self.finishing = self.finishing or m.Finish("preempted", text)
        if not anyone:
            self._end(self.finishing.why, message=self.finishing.message)
        return anyone

    # ---- opening a generation ---------------------------------------------------------------

    def _open(self, survivors: list[Worker], joiners: list[Worker]) -> None:
        joiners = [w for w in joiners or (self._ready() if not survivors else []) if w not in survivors]
        if not survivors and not joiners:
            return
        restore = not self._covered(survivors)
        reports = {w.id: w.report for w in survivors if w.report is not None}
        opened = (
            m.Open(0, (), self.step, restore=True)
            if restore
            else resume_point(reports, self.step, self.record)
        )
        if restore and self.sealed_once:
            self._say_rollback()
        self.generation += 1
        self.members = tuple(w.id for w in (*survivors, *joiners))
        self.cause = self.cause or ("start" if not self.sealed_once else "re-forming")
        self._out.append(replace(opened, generation=self.generation, members=self.members, cause=self.cause))
        for worker in (*survivors, *joiners):
            if worker.state is State.READY:
                worker.state, worker.joined_step = State.ACTIVE, opened.step
                self._say(
                    "worker.joined", f"{worker.id} joins at step {opened.step}", worker, step=opened.step
                )
            worker.report, worker.sealed, worker.waits, worker.idle_at = None, False, False, None
        self.phase, self.below_since = Phase.FORMING, None

    def _covered(self, workers: list[Worker]) -> bool:
        reports = [w.report for w in workers if w.report is not None]
        return covered(reports, self.blocks, self.step, self.record)

    def _say_rollback(self) -> None:
        lost, self.record = self.step, None
        to = self.saved_step or 0
        self.step = to
        self._out.append(
            m.Say(
                "rollback",
                f"owner and buddy of some state were lost together: back from step {lost} to {to}",
                {"from": lost, "to": to},
            )
        )

    # ---- words ------------------------------------------------------------------------------

    def _say(self, type_: str, message: str, worker: Worker, **data: object) -> None:
        self._out.append(m.Say(type_, message, {"worker": worker.id, "group": worker.group, **data}))

    def _fail(self, by: Literal["user", "infrastructure", "service"], message: str) -> None:
        if self.phase is not Phase.ENDED:
            self._end("failed", by, message)

    def _end(
        self,
        outcome: Literal["succeeded", "failed", "paused", "preempted", "cancelled"],
        by: Literal["user", "infrastructure", "service"] | None = None,
        message: str | None = None,
    ) -> None:
        self.phase = Phase.ENDED
        present = tuple(w.id for w in self.roster.workers.values() if w.connected)
        if present:
            self._out.append(m.Dismiss(present, outcome))
        self._out.append(m.End(outcome, self.step, by, message))

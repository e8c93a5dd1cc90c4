"""The groups of workers behind the membership machine: started, let go, lost, replaced. Pure.

    STARTING ──warm──▶ READY ──opened──▶ ACTIVE ──let go──▶ LEAVING ──▶ ENDED
        └──────────────────┴────────────────┴──gone, silent, raised──▶ LOST     (its whole group with it)

Who trains with whom is not decided here, but in membership.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.blame import Blame
from elastrain.trainers.membership.messages import Action, Blamed, Fault
from elastrain.trainers.membership.policy import Policy as Policy
from elastrain.trainers.membership.progress import Progress
from elastrain.trainers.membership.roster import Failure, Group, Notice, Roster, State, Worker
from elastrain.trainers.membership.silence import silent
from elastrain.trainers.membership.starts import Starts
from elastrain.trainers.membership.suspicion import Disagreement, Suspicion


class Fleet:
    """Keeps the roster. What has to be done about it is appended to `out`; two things are left to the caller:
    members that are lost, and a verdict that ends the job."""

    def __init__(self, policy: Policy, progress: Progress, out: list[Action]) -> None:
        self.policy, self.progress = policy, progress
        self.roster = Roster(policy.per_group)
        self.blame, self.suspicion, self.starts = Blame(), Suspicion(), Starts(self.roster)
        self.lost: list[Worker] = []  # members, since the caller looked
        self.verdict: tuple[Blamed, str] | None = None
        self.closing = False  # nobody is started or let go any more
        self.now = 0.0  # machine time, s
        self._clock: float | None = None
        self._out = out

    def tell(self, action: Action) -> None:
        self._out.append(action)

    def say(self, type_: str, worker: Worker, message: str, **data: object) -> None:
        """An event for people."""
        self._out.append(m.Say(type_, message, {"worker": worker.id, "group": worker.group, **data}))

    # ---- coming -----------------------------------------------------------------------------

    def _balance(self) -> None:
        """As many groups as wanted: start the missing, let the surplus leave."""
        if self.closing or self.verdict is not None:
            return
        wanted, spares = self.wanted, self.spares
        for group in self.roster.wanted_again(wanted, spares):
            group.leaving = False
        missing = self.roster.missing_servers(self.policy.servers, self.now)
        missing += self.roster.missing_slots(wanted + spares, self.now)
        for slot in missing[: self.starts.at_once()]:
            group = self.roster.add_group(slot)
            self._out.append(m.StartGroup(group.id, group.workers))
        for group in self.roster.surplus(wanted, spares):
            self._leave(group)

    @property
    def wanted(self) -> int:
        """Groups that are to be members."""
        return -(-self.policy.target // self.policy.per_group)

    @property
    def spares(self) -> int:
        """Groups that are to stand by."""
        return -(-self.policy.spares // self.policy.per_group)

    def joiners(self, least: int = 0) -> list[Worker]:
        """Who is warm and may become a member now, servers too; no worker if fewer than `least` are warm."""
        return [*self.roster.new_servers(), *self.roster.joiners(self.wanted, least)]

    def first_members(self) -> list[Worker]:
        """Who begins the training; nobody while it is not enough of them."""
        warm = self.joiners(self.policy.min)
        return warm if self.policy.suffice(warm, self.policy.servers) else []

    def scale(self, minimum: int, target: int) -> None:
        self.policy = replace(self.policy, min=minimum, target=target)
        self._balance()

    def registered(self, event: m.Registered) -> None:
        worker = self.roster.workers.get(event.worker)
        if worker is None or worker.state is not State.STARTING:
            self._out.append(m.Fence(event.worker, "not expected: unknown, or removed"))
        elif not worker.connected:
            worker.connected, worker.node, worker.pid = True, event.node, event.pid
            worker.last_beat = self.now
            self.say("worker.started", worker, f"{worker.id} started on {event.node}")

    def warm(self, worker: Worker) -> None:
        if worker.state is State.STARTING:
            worker.state = State.READY
            self.starts.ready()
            self.say("worker.ready", worker, f"{worker.id} is ready")

    def joined(self, members: Iterable[Worker], step: int) -> None:
        """A generation has formed at `step`: who of its members is new?"""
        for worker in members:
            if worker.joined_step is None:
                worker.joined_step = step
                self.say("worker.joined", worker, f"{worker.id} joins at step {step}", step=step)

    # ---- time -------------------------------------------------------------------------------

    def tick(self, now: float, awaited: bool) -> None:
        """Time passes. awaited: members wait for each other, so a silent one is in the way."""
        # A driver that was frozen for a minute must not find everybody dead: it advances by one beat at most.
        step = min(max(now - self._clock, 0.0), self.policy.heartbeat_s) if self._clock is not None else 0.0
        self.now += step
        self._clock = now
        for group in self.roster.running():
            group.age_s += step
            if group.leaving and group.stopping:
                if group.age_s > self.policy.leave_s:
                    self._kill(group)
            elif group.age_s > self.policy.start_timeout_s and not group.stopping:
                unborn = [w for w in self.roster.peers(group.id) if w.state is State.STARTING]
                if unborn:
                    self._remove(unborn[0], f"not ready after {self.policy.start_timeout_s:.0f} s")
        for worker in self.at_most_half(silent(self.roster, self.policy, self.now, awaited)):
            silent_s = self.now - worker.last_beat
            self.evict(worker, "no heartbeat", f"silent for {silent_s:.1f} s")
        self._balance()

    def at_most_half(self, workers: Iterable[Worker]) -> list[Worker]:
        """Of those who are to be removed so many, in order, that half of the members stay, and one of each
        group, which leaves as a whole. If it is more, then rather the driver hears nothing."""
        found: dict[str, Worker] = {}  # by group
        removed, active = 0, sum(w.state is State.ACTIVE for w in self.roster.workers.values())
        for worker in workers:
            removes = sum(w.state is State.ACTIVE for w in self.roster.peers(worker.group))
            if worker.group not in found and (not found or removed + removes <= active // 2):
                found[worker.group] = worker
                removed += removes
        return list(found.values())

    def evict(self, worker: Worker, cause: str, why: str | None = None) -> None:
        """Remove a worker that is there. cause: for people; why: for the worker."""
        worker.connected = False
        self._out.append(m.Fence(worker.id, why or cause))
        self._remove(worker, cause)

    # ---- going ------------------------------------------------------------------------------

    def _leave(self, group: Group) -> None:
        """At the next boundary, if it trains; its place is free from now on."""
        group.leaving = True
        if not self.roster.trains(group):
            self.let_go(group)

    def notice(self, event: m.Notice) -> None:
        """Somebody is going to end this worker. Its whole group leaves, and is replaced at once."""
        worker = self.roster.workers.get(event.worker)
        group = self.roster.groups[worker.group] if worker is not None else None
        if worker is None or group is None or group.stopping or group.ended:
            return
        until = self.now + event.grace_s
        if group.notice is not None and group.notice.until <= until:
            return  # it knows
        group.notice = Notice(self.now, until)
        text = f"{worker.id} leaves within {event.grace_s:.0f} s: {event.why}"
        self.say("worker.notice", worker, text, why=event.why, grace_s=event.grace_s)
        self._leave(group)
        self._balance()

    def let_go(self, *groups: Group) -> None:
        for group in groups:
            group.stopping, group.age_s = True, 0.0
            hears = any(w.connected for w in self.roster.peers(group.id))
            for worker in self.roster.peers(group.id):
                worker.state = State.LEAVING
                self.say("worker.left", worker, f"{worker.id} left")
            if hears:
                self._out.append(m.Dismiss(group.workers, "no longer needed"))
                self._out.append(m.StopGroup(group.id, kill=False))
            else:  # it is still starting and cannot be told
                self._kill(group)

    def closed(self, worker_id: str) -> None:
        worker = self.roster.workers.get(worker_id)
        if worker is not None:
            worker.connected = False
            self._unheard(worker, "its connection closed")

    def group_gone(self, event: m.GroupGone) -> None:
        """Every process of a group has ended. Last words may still be on their way: a connection closes after
        them, or is silent for good."""
        group = self.roster.groups.get(event.group)
        if group is None or group.ended:
            return
        group.ended, group.causes = True, event.causes
        for worker in self.roster.peers(group.id):
            if worker.state is State.LOST:
                self._say_exit(worker, group)
            elif not worker.connected:
                self._unheard(worker, "its process ended")
        self._judge(group)
        self._balance()

    def _unheard(self, worker: Worker, why: str) -> None:
        """Nothing more comes from this worker."""
        group = self.roster.groups[worker.group]
        if worker.state in (State.STARTING, State.READY, State.ACTIVE):
            self._remove(worker, group.causes.get(worker.id) or why, vanished=True)
        elif worker.state is State.LEAVING and group.ended:
            worker.state = State.ENDED

    def _say_exit(self, worker: Worker, group: Group) -> None:
        cause = group.causes.get(worker.id)
        if cause:
            after = " (after it was removed)" if group.removed else ""
            self.say("worker.exited", worker, f"{worker.id}: {cause}{after}", cause=cause)

    def raised(self, worker: Worker, fault: Fault, rank: int | None = None, *, alone: bool = False) -> None:
        """A worker reports an exception; a member has a rank. alone: it is the only one."""
        where = f"rank {rank}" if rank is not None else "while it started"
        if fault.step is not None:
            where += f", step {fault.step}"
        if fault.microbatch is not None:
            where += f", microbatch {fault.microbatch}"
        if self.blame.raised(worker.id, fault, alone):
            by: Blamed = "service" if fault.phase == "internal" else "user"
            self.verdict = by, f"{fault.error}\n(on {worker.id}, {where})\n\n{fault.traceback}"
        elif alone:
            self.say("worker.error", worker, f"{worker.id} raised {fault.error}; it tries once more")
        else:  # another worker computes the same: if it raises there too, it is the user's
            self._remove(worker, f"raised {fault.error} ({where})")

    def disagreed(self, found: Disagreement) -> None:
        """Owner and buddy of some state differ, as a member reports; the others report the same."""
        if self.progress.distrusted:
            return
        self.progress.distrusted = True
        text, data = self.suspicion.judge(found, {w.id: w.node for w in self.roster.workers.values()})
        self._out.append(m.Say("corruption", text, data))
        if self.suspicion.hopeless:
            self.verdict = self.verdict or ("infrastructure", f"{text}; it was tried again in vain")
        for worker in (self.roster.workers[w] for w in data["removed"]):
            if worker.state is State.ACTIVE:
                self._remove(worker, "its state differs from that of its peers")

    def _remove(self, worker: Worker, why: str, vanished: bool = False) -> None:
        """A worker is gone for us. Its whole group leaves with it, and is ended for certain."""
        group = self.roster.groups[worker.group]
        if vanished and not group.stopping:
            self._vanished(worker, group)
        group.removed = group.removed or not vanished
        spare = all(peer.state is State.READY for peer in self.roster.peers(group.id))
        for peer in self.roster.peers(group.id):
            if peer.state is State.ACTIVE:
                self.lost.append(peer)
            if peer.state not in (State.LOST, State.ENDED):
                peer.state = State.LOST
                with_group = f"{peer.id} leaves with its group: {worker.id} is lost"
                text = f"{peer.id} is lost: {why}" if peer is worker else with_group
                self.say("worker.lost", peer, text, cause=why)
                self._say_exit(peer, group)
        self._kill(group)
        if not group.stopping:
            group.stopping = True
            if group.notice is None:  # else it was not its own doing
                group.failure = Failure(worker.id, why, spare)
            if group.ended:
                self._judge(group)

    def _judge(self, group: Group) -> None:
        """Once it is known how the processes of a lost group ended: is it useless to start it again?"""
        failure, group.failure = group.failure, None
        if failure is None:
            return
        cause = None if group.removed else group.causes.get(failure.worker)
        wanted = self.policy.servers if group.server else self.wanted
        sizes = {"wanted": wanted, "slots": self.wanted + self.spares}
        useless = self.starts.failed(group, cause or failure.why, self.now, spare=failure.spare, **sizes)
        if useless is not None:
            self.verdict = self.verdict or ("infrastructure", useless)

    def _vanished(self, worker: Worker, group: Group) -> None:
        began = worker.computes(self.progress.step, self.policy.in_order)
        if group.notice is not None or began is None:
            return  # it was told to end, or that step is done
        text = self.blame.vanish(worker.id, began, self.progress.generation)
        if text is not None:
            self.verdict = ("user", text)

    def _kill(self, group: Group) -> None:
        if not (group.killed or group.ended):
            group.killed = True
            self._out.append(m.StopGroup(group.id, kill=True))

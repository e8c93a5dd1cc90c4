"""One attempt of a job: machine, coordinator, launcher and checkpoints, put together. No torch.

launcher ──starts──▶ workers ◀──WebSocket──▶ coordinator ──events──▶ machine ──actions──▶ here
                                                 here ──facts──▶ sink (the driver's line to the service)
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from elastrain.trainers.checkpoints.manifests import Checkpoints
from elastrain.trainers.checkpoints.saving import Saving
from elastrain.trainers.coordination.coordinator import Coordinator
from elastrain.trainers.coordination.opener import Opener
from elastrain.trainers.coordination.pause import Pause
from elastrain.trainers.coordination.tally import Tally
from elastrain.trainers.launching.launcher import GroupEnded, GroupStart, Launcher, WorkerStart
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Machine, Phase, Policy
from elastrain.trainers.membership.messages import Action, Event, Json
from elastrain.trainers.membership.roster import State
from elastrain.trainers.numerics.data import EmptyDataset
from elastrain.trainers.reporting.facts import event, now
from elastrain.trainers.spec import JobSpec
from elastrain.trainers.spec.source import NoSource
from elastrain.trainers.spec.strategies import asynchronous, servers_of
from elastrain.trainers.storage import Storage

TICK_S = 0.1
END_S = 10.0  # for workers to end by themselves


@dataclass(frozen=True)
class Outcome:
    outcome: Literal["succeeded", "failed", "paused", "preempted", "cancelled"]
    step: int
    failed_by: Literal["user", "infrastructure", "service"] | None = None
    message: str | None = None


class Attempt:
    """Call `run` once. The other methods may be called while it runs, from the same event loop."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        job: str,
        attempt: int,
        storage: Storage,
        launcher: Launcher,
        sink: Callable[[Json], None],
        host: str = "127.0.0.1",
        welcome: Json | None = None,
        workers: tuple[int, int] | None = None,  # (min, target); default: the spec's min and max
    ) -> None:
        self.spec, self.job, self.number = spec, job, attempt
        self.launcher, self.sink, self.host = launcher, sink, host
        self.receipt: Json | None = None  # after `run`: what is known of the end of its processes
        self.key = secrets.token_urlsafe(24)
        minimum, target = workers or (spec.workers.min, spec.workers.max)
        sizes = (spec.workers.per_group, spec.workers.spares)
        servers, in_order = servers_of(spec.strategy), not asynchronous(spec.strategy)
        self.machine = Machine(Policy(minimum, target, *sizes, servers=servers, in_order=in_order))
        self.coordinator = Coordinator(self.key, self._feed, self._heard)
        self.coordinator.welcome = {
            "kind": "welcome",
            "spec": spec.model_dump(mode="json"),
            "beat_s": self.machine.policy.heartbeat_s / 4,
            "storage_url": storage.url,
            "storage_options": {},
            "package": spec.code,
            "env": dict(spec.env),
            **(welcome or {}),
        }
        self.checkpoints = Checkpoints(storage, job, attempt, spec, self._emit)
        self.saving = Saving(self.checkpoints, self.machine.progress, self._feed, spec.checkpoint.every_s)
        self.tally = Tally(spec, sink)
        parts = (self.machine, self.coordinator, self.checkpoints, self.tally)
        self.opener = Opener(*parts, self._feed, self._no_checkpoint, self.saving.settled)
        self._members: dict[int, tuple[str, ...]] = {}  # generation -> who uploads, by rank and process
        self._outcome: asyncio.Future[Outcome] | None = None
        self._pause = Pause()

    # ---- what the driver may ask ------------------------------------------------------------

    def scale(self, minimum: int, target: int) -> None:
        """Change the number of workers of the running job."""
        self._feed(m.Scale(minimum, target))

    def finish(self, why: Literal["paused", "preempted", "cancelled"], message: str | None = None) -> None:
        """End the attempt: after a checkpoint, or at once if cancelled."""
        self._feed(m.Finish(why, message))

    def checkpoint(self, number: int) -> None:
        """Make a checkpoint at the next boundary, and tell that request `number` is fulfilled."""
        self.saving.ask(number)

    # ---- its life ---------------------------------------------------------------------------

    async def run(self) -> Outcome:
        """Train to the end, whatever that is. Returns when every group that was started is gone."""
        self._loop = asyncio.get_running_loop()
        self._outcome = self._loop.create_future()
        await self.coordinator.open(self.host)
        try:
            found = await self.opener.patiently(self.checkpoints.newest)
        except NoSource as error:
            await self.coordinator.close()
            return Outcome("failed", 0, "user", str(error))
        if found is not None:
            self._feed(m.Restored(found[1]["cursor"]["step"], own=self.checkpoints.own(found[1])))
        self.tally.progress("starting", self.machine)
        ticker = asyncio.create_task(self._tick())
        try:
            waits: list[asyncio.Future[object]] = [self._outcome, ticker]  # type: ignore[list-item]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if ticker.done():
                ticker.result()
            return await self._outcome
        finally:
            ticker.cancel()
            await self._clear()

    async def _tick(self) -> None:
        while True:
            for news in self.launcher.poll():
                self._feed(news if isinstance(news, m.Notice) else m.GroupGone(news.group, news.causes))
            self._feed(m.Tick(time.monotonic()))
            if self.machine.phase is Phase.STEADY:
                self.saving.tick()
            self.tally.progress(None, self.machine)
            await asyncio.sleep(TICK_S)

    async def _clear(self) -> None:
        """End every process; a worker has a moment to do so by itself."""
        self.opener.close()
        running = {g.id for g in self.machine.roster.running()}
        for group in set(running):  # one that is still starting cannot hear us
            self.launcher.stop(group, kill=not any(w.connected for w in self.machine.roster.peers(group)))
        deadline = time.monotonic() + (END_S if self._graceful() else 0.5)
        while running and time.monotonic() < deadline:
            running -= self._ended_groups()
            await asyncio.sleep(0.02)
        for group in running:
            self.launcher.stop(group, kill=True)
        self.receipt = await asyncio.to_thread(self.launcher.close)
        self._ended_groups()
        await self.coordinator.close()
        await self.saving.close()
        self.tally.all_ended(self.machine)

    def _ended_groups(self) -> set[str]:
        """Groups that ended after the machine did; how a lost worker's process ended is still said."""
        ended = [news for news in self.launcher.poll() if isinstance(news, GroupEnded)]
        for group in ended:
            for worker in self.machine.roster.peers(group.group):
                cause = group.causes.get(worker.id)
                if cause and worker.state is State.LOST:
                    data = {"worker": worker.id, "group": worker.group, "cause": cause}
                    self.sink(event("worker.exited", f"{worker.id}: {cause}", data))
        return {group.group for group in ended}

    def _graceful(self) -> bool:
        """Did it end in a way in which workers have something to finish?"""
        over = self._outcome
        if over is None or not over.done() or over.exception() is not None:
            return False
        return over.result().outcome in ("succeeded", "paused", "preempted")

    @contextlib.contextmanager
    def _or_end(self) -> Iterator[None]:
        """What raises amid the machine's orders leaves some undone, and everybody waiting: the attempt ends
        with that error, not just the connection over which a word came."""
        try:
            yield
        except Exception as error:
            if self._outcome is None or self._outcome.done():
                raise
            self._outcome.set_exception(error)

    def _no_checkpoint(self, why: str, by: m.Blamed) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(Outcome("failed", self.machine.progress.step, by, why))

    def _emit(self, fact: Json) -> None:
        """A fact from any thread: manifests are written in one, and the sink is promised this loop."""
        self._loop.call_soon_threadsafe(self.sink, fact)

    # ---- the machine ------------------------------------------------------------------------

    def _feed(self, event_: Event) -> None:
        with self._or_end():
            self._take(event_)

    def _take(self, event_: Event) -> None:
        before, actions = self.machine.phase, self.machine.handle(event_)
        self._pause.watch(before, event_, self.machine.phase)
        for action in actions:
            self._do(action)
        if isinstance(event_, m.Closed):
            self.saving.lost(event_.worker)
        told = any(isinstance(a, m.Say | m.StartGroup) for a in actions)  # not of every single word
        if told or isinstance(event_, m.Closed | m.GroupGone):
            self.tally.workers(self.machine)

    def _do(self, action: Action) -> None:
        match action:
            case m.StartGroup(group, workers):
                self.launcher.start(GroupStart(group, tuple(self._start(w, group) for w in workers)))
            case m.StopGroup(group, kill):
                self.launcher.stop(group, kill=kill)
            case m.Fence(worker, _):
                self.coordinator.fence(worker)
                self.saving.lost(worker)
            case m.Halt(generation, workers, why):
                self.coordinator.tell(workers, {"kind": "halt", "generation": generation, "why": why})
            case m.Command(number, kind):
                members = self.machine.members
                self.coordinator.tell(members, {"kind": "command", "number": number, "command": kind})
            case m.Probe(generation, workers):
                self.coordinator.tell(workers, {"kind": "probe", "generation": generation})
            case m.Dump(worker):
                self.coordinator.tell([worker], {"kind": "dump"})
            case m.Dismiss(workers, why):
                self.coordinator.tell(workers, {"kind": "dismiss", "why": why})
            case m.Open(generation, members):
                each, keepers = range(self.spec.workers.processes), self.machine.generation.keepers
                self._members[generation] = tuple(w.id for w in keepers for _ in each)
                self.tally.opened(action.cursor)
                self.opener.open(action)
            case m.Accept(_, record, cursor):
                self.tally.accepted(record, cursor, self.machine)
            case m.Say(type_, message, data):
                self._say(type_, message, data)
            case m.End(outcome, step, by, message):
                if self._outcome is not None and not self._outcome.done():
                    self._outcome.set_result(Outcome(outcome, step, by, message))

    def _start(self, worker: str, group: str) -> WorkerStart:
        spec, policy, server = self.spec, self.machine.policy, self.machine.roster.workers[worker].server
        cpu = spec.strategy.server_cpu if server else spec.resources.cpu  # type: ignore[union-attr]
        whose = (worker, group, self.coordinator.url, self.key, self.job, self.number)
        keepers = policy.servers or policy.target
        return WorkerStart(*whose, cpu, server, *spec.workers.divided, spec.threads, keepers)

    def _say(self, type_: str, message: str, data: Json) -> None:
        if type_ == "generation.formed":
            data = {**data, "pause_ms": self._pause.end()}
            self.sink({"kind": "generation", "at": now(), "formed_at": now(), **data})
            self.tally.progress("running", self.machine)
        if type_ == "worker.lost":
            message, data = self.tally.lost(message, data, self.machine)
        if type_ == "rollback":
            self.tally.rolled_back()
        self.sink(event(type_, message, data))

    # ---- what is not the machine's business -------------------------------------------------

    def _heard(self, worker: str, said: Json) -> None:
        known = self.machine.roster.workers.get(worker)
        if known is None or known.state is State.LOST:
            return  # what a removed worker still says changes nothing
        with self._or_end():
            self._note(worker, said)

    def _note(self, worker: str, said: Json) -> None:
        match said["kind"]:
            case "warm":
                self._warm(worker, said)
            case "evaluated":
                self.tally.evaluated(said["step"], said["metrics"])
            case "measured":
                self.tally.measured(said["step"], said["metrics"])
            case "warning":
                self.tally.warn(said["message"])
            case "part":
                gone = {w.id for w in self.machine.roster.workers.values() if w.state is State.LOST}
                self.saving.part(said, self._members.get(said["generation"]), gone)
            case "part_failed":
                self.saving.failed(said, worker)
            case "bad_checkpoint":
                self.opener.set_aside(said["step"], f"{said['file']}: {said['why']}")

    def _warm(self, worker: str, said: Json) -> None:
        try:
            self.tally.learn(said)
        except EmptyDataset as error:
            self._feed(m.StartFailed(worker, m.Fault("verdict", f"dataset('train'): {error}", "")))
            return
        self.checkpoints.plan = self.tally.plan
        self._feed(m.Warm(worker, said["blocks"]))

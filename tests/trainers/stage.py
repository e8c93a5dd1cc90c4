"""A machine on a stage: its workers say what a test has them say, and hold what real ones would hold."""

from __future__ import annotations

from typing import Any, TypeVar

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Machine, Policy
from elastrain.trainers.membership.messages import Fault, Json, Report
from elastrain.trainers.numerics.chunks import BUCKET, Domain, FlatSpace, Ownership

A = TypeVar("A", bound=m.Action)


class Stage:
    """Workers are w0, w1, ... in the order in which they are started; each group on a node of its own."""

    def __init__(self, workers: int = 2, *, minimum: int = 1, per_group: int = 1, **policy: Any) -> None:
        self.machine = Machine(Policy(minimum, workers, per_group, **policy))
        self.blocks = 12
        self.clock = 0.0
        self.out: list[m.Action] = []  # everything that was ordered since `news` was asked
        self.end: m.End | None = None
        self.saved = 0  # what a restore finds
        self.log: list[m.Action] = []
        self.feed(m.Tick(0.0))

    def feed(self, *events: m.Event) -> Stage:
        for event in events:
            for action in self.machine.handle(event):
                self.out.append(action)
                self.log.append(action)
                if isinstance(action, m.End):
                    self.end = action
                if isinstance(action, m.Open) and action.restore:
                    self.feed(m.Restored(self.saved))
        return self

    def news(self, kind: type[A]) -> list[A]:
        """Orders of this kind since the last time that orders of any kind were asked for."""
        found = [a for a in self.out if isinstance(a, kind)]
        self.out.clear()
        return found

    def all(self, kind: type[A]) -> list[A]:
        return [a for a in self.log if isinstance(a, kind)]

    def said(self, type_: str) -> list[Json]:
        """Data of the events for people of one type, all of them."""
        return [a.data for a in self.log if isinstance(a, m.Say) and a.type == type_]

    @property
    def opened(self) -> m.Open:
        return self.all(m.Open)[-1]

    @property
    def members(self) -> tuple[str, ...]:
        return self.machine.members

    # ---- what workers do --------------------------------------------------------------------

    def arrive(self, *workers: str) -> Stage:
        for worker in workers:
            node = self.machine.roster.workers[worker].group.replace("g", "n")
            self.feed(m.Registered(worker, node, 1, {}), m.Warm(worker, self.blocks))
        return self

    def seal(self, *workers: str) -> Stage:
        """All members by default."""
        for worker in workers or self.members:
            self.feed(m.Sealed(worker, self.machine.generation.number, self.machine.generation.opened_at))
        return self

    def commit(self, worker: str | None = None, step: int | None = None) -> Stage:
        """Rank 0 passes on the record of the next step, by default."""
        step = step if step is not None else self.machine.progress.step + 1
        number = self.machine.generation.number
        self.feed(m.Committed(worker or self.members[0], number, step, record(step)))
        return self

    def began(self, worker: str, microbatch: int = 0) -> Stage:
        self.feed(m.Began(worker, self.machine.progress.step, microbatch))
        return self

    def held(self, worker: str) -> tuple[m.Range, ...]:
        """Blocks that a member keeps."""
        roster = self.machine.roster.workers
        domains = [Domain(w, roster[w].group, roster[w].node) for w in self.members]
        own = Ownership.of(FlatSpace((), self.blocks * (BUCKET // 4), BUCKET // 4), domains)
        return tuple(own.held(self.members.index(worker)))

    def report(self, *workers: str, step: int | None = None, why: Any = "halted", **fields: Any) -> Stage:
        """All survivors by default. A report that is at a step later than accepted has its record."""
        survivors = [w.id for w in self.machine.generation.survivors if w.report is None]
        for worker in workers or survivors:
            number, accepted = self.machine.generation.number, self.machine.progress.step
            at = accepted if step is None else step
            known = {"record": record(at)} if at > accepted else {}
            given = {"held": self.held(worker), "whole": True, **known, **fields}
            self.feed(m.Reported(worker, Report(number, why, at, cursor(at), **given)))
        return self

    def raise_(
        self, worker: str, microbatch: int, error: str = "ValueError: bad", phase: str = "compute"
    ) -> Stage:
        at = self.machine.progress.step
        return self.report(worker, why="fault", fault=Fault(phase, error, "line 1", at, microbatch))

    def idle(self, *workers: str) -> Stage:
        for worker in workers or self.members:
            self.feed(m.Idle(worker, self.machine.generation.number, self.machine.progress.step))
        return self

    def die(self, worker: str, cause: str = "signal 9 (SIGKILL)") -> Stage:
        """A SIGKILL: the connection closes, and a moment later the launcher sees that its group is gone."""
        group = self.machine.roster.workers[worker].group
        self.feed(m.Closed(worker))
        for peer in self.machine.roster.groups[group].workers:
            self.feed(m.Closed(peer))
        self.feed(m.GroupGone(group, {worker: cause}))
        return self

    def notice(self, *workers: str, grace_s: float = 30.0) -> Stage:
        for worker in workers:
            self.feed(m.Notice(worker, grace_s, "SIGTERM"))
        return self

    # ---- time -------------------------------------------------------------------------------

    def wait(self, seconds: float, silent: tuple[str, ...] = ()) -> Stage:
        """Time passes, a tick every half second; everyone beats but the silent."""
        end = self.clock + seconds
        while self.clock < end - 1e-9:
            self.clock += 0.5
            for worker in self.machine.roster.workers.values():
                if worker.connected and worker.id not in silent:
                    self.feed(m.Beat(worker.id))
            self.feed(m.Tick(self.clock))
        return self


def record(step: int) -> Json:
    """The commit record that leads to `step`."""
    return {"step": step - 1, "loss": 1.0 / step}


def cursor(step: int) -> Json:
    return {"step": step}


def training(workers: int = 2, **policy: Any) -> Stage:
    """A stage on which as many workers train in generation 1 (min is 1), and three steps are accepted."""
    stage = Stage(workers, minimum=workers, **policy)
    stage.arrive(*stage.machine.roster.workers)
    stage.seal().commit().commit().commit()
    stage.feed(m.Scale(1, workers))
    assert len(stage.members) == workers
    stage.out.clear()
    return stage

"""One generation as the machine sees it: a fixed set of members, and whose word is missing. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from elastrain.trainers.membership.messages import Halt, Json, Report, Say
from elastrain.trainers.membership.roster import Roster, State, Worker


class Phase(StrEnum):
    WAITING = "waiting"
    FORMING = "forming"
    STEADY = "steady"
    COLLECTING = "collecting"
    ENDED = "ended"


@dataclass
class Generation:
    number: int = 0
    members: tuple[Worker, ...] = ()  # in rank order
    opened_at: int = 0  # step at which it began
    awaited: set[str] = field(default_factory=set)  # members who still have to seal, to idle, or to report
    halted: bool = False  # they were told that it is over
    waits: bool = False  # a member waits for its peers
    committed: bool = False  # a step was committed in it
    regroup_sent: bool = False
    saves: bool = False  # a checkpoint was asked for, since everybody leaves
    hold: bool = False  # nothing is computed in it

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(w.id for w in self.members)

    @property
    def survivors(self) -> list[Worker]:
        return [w for w in self.members if w.connected and w.state is State.ACTIVE]

    @property
    def keepers(self) -> list[Worker]:
        """Survivors that keep state: the servers, where there are any, else all."""
        served = any(w.server for w in self.members)
        return [w for w in self.survivors if w.server or not served]

    @property
    def somebody_idles(self) -> bool:
        """While it trains: does a member wait to be ended?"""
        return len(self.awaited) < len(self.members)

    def commit(self, roster: Roster, record: Json) -> None:
        """A step was committed in it."""
        if "task" in record:  # of an asynchronous run: which step it was
            for worker in self.members:
                worker.done(record["task"][0])
        if not self.committed:
            self.committed = True
            for worker in self.members:
                roster.groups[worker.group].committed = True

    def collect(self) -> None:
        """From now on every survivor has to report."""
        self.awaited = {w.id for w in self.survivors if w.report is None}

    @property
    def proof(self) -> Report | None:
        """The report of the newest step that comes with its commit record."""
        reports = [w.report for w in self.survivors if w.report is not None and w.report.record is not None]
        return max(reports, key=lambda r: r.step, default=None)

    def formed(self, cause: str) -> Say:
        data = {"generation": self.number, "workers": list(self.ids), "step": self.opened_at, "cause": cause}
        return Say("generation.formed", f"generation {self.number}: {', '.join(self.ids)}", data)

    def halt(self, why: str) -> list[Halt]:
        """Whoever has not reported is told, once, to leave what it waits in and to report."""
        if self.halted or not self.awaited:
            return []
        self.halted = True
        return [Halt(self.number, tuple(w.id for w in self.members if w.id in self.awaited), why)]

"""Workers and groups as the machine sees them, and how many groups there should be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from elastrain.trainers.messages import Report


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"  # warm: torch imported, model built, data open
    ACTIVE = "active"
    LEAVING = "leaving"
    LOST = "lost"
    ENDED = "ended"


@dataclass
class Worker:
    id: str
    group: str
    state: State = State.STARTING
    node: str = ""
    pid: int = 0
    connected: bool = False
    last_beat: float = 0.0  # machine time, s
    waits: bool = False  # says that it waits for its peers
    idle_at: int | None = None
    began: tuple[int, int] | None = None  # (step, microbatch) it announced last
    report: Report | None = None
    joined_step: int | None = None
    sealed: bool = False

    @property
    def present(self) -> bool:
        return self.connected and self.state in (State.READY, State.ACTIVE, State.LEAVING)


@dataclass
class Group:
    id: str
    workers: tuple[str, ...]
    slot: int  # a replacement takes over the slot of the group that it replaces
    stopping: bool = False  # told to end, or known to be dying
    leaving: bool = False  # to be left out at the next boundary
    ended: bool = False
    committed: bool = False  # a step was committed while it was a member
    age_s: float = 0.0


BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)  # before the n-th start of a slot without a committed step
CRASH_LOOP = len(BACKOFF_S)


@dataclass
class Slot:
    """The place of one group. Crash loop: five starts in it without a committed step."""

    failures: int = 0
    not_before: float = 0.0  # machine time, s
    causes: list[str] = field(default_factory=list)


@dataclass
class Roster:
    per_group: int
    workers: dict[str, Worker] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)

    def peers(self, group: str) -> list[Worker]:
        return [self.workers[w] for w in self.groups[group].workers]

    def serving(self) -> list[Group]:
        """Groups that count towards the target: neither ended, dying nor leaving; oldest first."""
        return [g for g in self.groups.values() if not (g.ended or g.stopping or g.leaving)]

    def running(self) -> list[Group]:
        return [g for g in self.groups.values() if not g.ended]

    def add_group(self, slot: int) -> Group:
        number = len(self.groups)
        first = len(self.workers)
        ids = tuple(f"w{first + i}" for i in range(self.per_group))
        group = Group(f"g{number}", ids, slot)
        self.groups[group.id] = group
        for worker in ids:
            self.workers[worker] = Worker(worker, group.id)
        return group

    def missing_slots(self, wanted: int, now: float) -> Iterator[int]:
        """Slots that want a group and may have one now.

        A slot whose last group is still dying waits for it: its resources are not back yet.
        """
        occupied = {g.slot for g in self.running() if not g.leaving}
        for number in range(wanted):
            slot = self.slots.setdefault(number, Slot())
            if number not in occupied and now >= slot.not_before:
                yield number

    def surplus(self, wanted: int) -> list[Group]:
        """Groups beyond the target, the highest slots first."""
        return [g for g in sorted(self.serving(), key=lambda g: -g.slot) if g.slot >= wanted]

    def charge(self, group: Group, cause: str, now: float) -> bool:
        """Note that a group failed. True if its slot is in a crash loop."""
        slot = self.slots.setdefault(group.slot, Slot())
        if group.committed:
            slot.failures, slot.causes = 0, []
        slot.failures += 1
        slot.causes.append(cause)
        slot.not_before = now + BACKOFF_S[min(slot.failures - 1, CRASH_LOOP - 1)]
        return slot.failures >= CRASH_LOOP

"""Workers and groups as the machine sees them, and how many groups there should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, islice

from elastrain.trainers.membership.messages import Report


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"  # warm: torch imported, model built, data open
    ACTIVE = "active"  # a member of this generation
    LEAVING = "leaving"  # let go; ends by itself
    LOST = "lost"
    ENDED = "ended"


@dataclass(eq=False)
class Worker:
    id: str
    group: str
    state: State = State.STARTING
    server: bool = False  # keeps state and computes nothing
    node: str = ""
    pid: int = 0
    connected: bool = False
    last_beat: float = 0.0  # machine time, s
    spoke: float = 0.0  # machine time, s: when its training thread was heard last
    waits_since: float | None = None  # machine time, s: its last word was that it waits, the first time then
    waits_in: tuple[int, int] = (0, 0)  # (generation, operations that were finished)
    warned: bool = False  # people were told that it says nothing
    idle: bool = False  # did everything that was due and waits to be ended
    began: tuple[int, int] | None = None  # (step, microbatch) it announced last
    begun: int = 0  # so often for this step
    report: Report | None = None
    joined_step: int | None = None

    def begin(self, step: int, microbatch: int) -> None:
        """It announces a microbatch, or the next part of one."""
        self.begun = self.begun_at(step) + 1
        self.began = (step, microbatch)

    def begun_at(self, step: int) -> int:
        return self.begun if self.began is not None and self.began[0] == step else 0

    def computes(self, committed: int, in_order: bool) -> tuple[int, int] | None:
        """The (step, microbatch) that it announced, unless that step is done: one of the first `committed`,
        or, where they are not in order, one whose commit made it forget it."""
        return None if self.began is None or (in_order and self.began[0] < committed) else self.began

    def done(self, step: int) -> None:
        if self.began is not None and self.began[0] == step:
            self.began = None

    @property
    def counts(self) -> bool:
        """Is heard: what a removed worker still says changes nothing."""
        return self.connected and self.state not in (State.LOST, State.ENDED)


@dataclass(frozen=True)
class Notice:
    """Somebody said that a group's processes will be ended. Times are machine time, in seconds."""

    given: float
    until: float


@dataclass(frozen=True)
class Failure:
    """Why a group was lost, as far as it was known then."""

    worker: str  # the first of it
    why: str
    spare: bool  # it was ready, and no member


@dataclass
class Group:
    id: str
    workers: tuple[str, ...]
    slot: int  # a replacement takes over the slot of the group that it replaces; below 0: a server's
    leaving: bool = False  # to be left out at the next boundary
    notice: Notice | None = None  # why it is leaving, if it is not for a lower target
    stopping: bool = False  # told to end, or known to be dying
    killed: bool = False  # its processes are ended for certain
    removed: bool = False  # by us, while its processes ran: how they end then says nothing about them
    ended: bool = False
    committed: bool = False  # a step was committed while it was a member
    failure: Failure | None = None  # not counted yet: how its processes ended is still to be heard
    causes: Mapping[str, str] = field(default_factory=dict)  # worker -> how its process ended
    age_s: float = 0.0  # since it was started; once it is let go, since then

    @property
    def server(self) -> bool:
        return self.slot < 0

    def urgent(self, now: float) -> bool:
        """After a notice half of the time is for a boundary to come by itself; from then on it is forced."""
        return self.notice is not None and now >= (self.notice.given + self.notice.until) / 2


BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)  # after so many starts of a slot in a row without a committed step
CRASH_LOOP = len(BACKOFF_S)


@dataclass
class Slot:
    """The place of one group. Crash loop: five starts in a row in it without a committed step."""

    failures: int = 0
    not_before: float = 0.0  # machine time, s
    causes: list[str] = field(default_factory=list)


@dataclass
class Roster:
    per_group: int
    workers: dict[str, Worker] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    slots: dict[int, Slot] = field(default_factory=dict)
    _named: Counter[bool] = field(default_factory=Counter)  # of servers, and of workers

    def peers(self, group: str) -> list[Worker]:
        return [self.workers[w] for w in self.groups[group].workers]

    def serving(self, server: bool = False) -> list[Group]:
        """Groups of workers, or of servers, that count towards the target: neither ended, dying nor leaving;
        oldest first."""
        present = [g for g in self.groups.values() if not (g.ended or g.stopping or g.leaving)]
        return [g for g in present if g.server is server]

    def running(self) -> list[Group]:
        return [g for g in self.groups.values() if not g.ended]

    def leaving(self) -> list[Group]:
        """Groups to be left out at the next boundary."""
        return [g for g in self.groups.values() if g.leaving and not (g.ended or g.stopping)]

    def trains(self, group: Group) -> bool:
        """Are its workers members? They are all of them, or none."""
        return any(w.state is State.ACTIVE for w in self.peers(group.id))

    def is_ready(self, group: Group) -> bool:
        return all(w.state is State.READY and w.connected for w in self.peers(group.id))

    def joiners(self, wanted: int, least: int = 0) -> list[Worker]:
        """Who may become a member: warm, with its whole group; nobody if fewer than `least` are warm. wanted:
        groups that are to be members.

        Warm groups beyond that are spares, the youngest ones.
        """
        if sum(w.state is State.READY and not w.server for w in self.workers.values()) < least:
            return []  # said at once: it is asked a thousand times while a thousand workers start
        serving = self.serving()
        room = max(0, wanted - sum(self.trains(group) for group in serving))
        ready = [group for group in serving if self.is_ready(group)][:room]
        return [worker for group in ready for worker in self.peers(group.id)]

    def new_servers(self) -> list[Worker]:
        """Servers that are warm, and no members yet."""
        ready = [group for group in self.serving(server=True) if self.is_ready(group)]
        return [worker for group in ready for worker in self.peers(group.id)]

    def add_group(self, slot: int) -> Group:
        number, server = len(self.groups), slot < 0
        size = 1 if server else self.per_group
        ids = tuple(f"{'s' if server else 'w'}{self._named[server] + i}" for i in range(size))
        self._named[server] += size
        group = Group(f"g{number}", ids, slot)
        self.groups[group.id] = group
        for worker in ids:
            self.workers[worker] = Worker(worker, group.id, server=server)
        return group

    def missing_servers(self, wanted: int, now: float) -> list[int]:
        """Slots of servers that want a group and may have one now."""
        occupied = {g.slot for g in self.running() if g.server and not g.leaving}
        free = [slot for slot in range(-wanted, 0) if slot not in occupied]
        return [slot for slot in free if now >= self.slots.setdefault(slot, Slot()).not_before]

    def missing_slots(self, wanted: int, now: float) -> Iterator[int]:
        """Slots that want a group and may have one now. wanted: groups, spares among them.

        A slot whose last group is still dying waits for it: its resources are not back yet.
        """
        occupied = self._occupied()
        free = (number for number in count() if number not in occupied)
        for number in islice(free, max(0, wanted - len(occupied))):
            if now >= self.slots.setdefault(number, Slot()).not_before:
                yield number

    def surplus(self, wanted: int, spares: int = 0) -> list[Group]:
        """Groups beyond the target, the highest slots first. wanted: groups that are to be members."""
        serving = sorted(self.serving(), key=lambda g: -g.slot)
        members = [g for g in serving if self.trains(g)]
        others = [g for g in serving if not self.trains(g)]
        found = members[: max(0, len(members) - wanted)]
        too_many = len(serving) - len(found) - wanted - spares
        return found + others[: max(0, too_many)]

    def wanted_again(self, wanted: int, spares: int = 0) -> list[Group]:
        """Groups that were to leave, and need not, since the target went up again."""
        occupied = self._occupied()
        again = [g for g in self.leaving() if g.notice is None and not g.server and g.slot not in occupied]
        members = sum(self.trains(g) for g in self.serving())
        return again[: max(0, min(wanted - members, wanted + spares - len(occupied)))]

    def _occupied(self) -> set[int]:
        return {g.slot for g in self.running() if not (g.leaving or g.server)}

    def all_failed(self, wanted: int) -> bool:
        """Did the last start in every slot fail?"""
        return all(slot in self.slots and self.slots[slot].failures for slot in range(wanted))

    def charge(self, group: Group, cause: str, now: float, well: bool = False) -> bool:
        """Note that a group ended. True if its slot is in a crash loop. well: it did what it was for."""
        slot = self.slots.setdefault(group.slot, Slot())
        if group.committed or well:  # it did work: whatever failed before it is forgotten
            slot.failures, slot.causes = 0, []
        else:
            slot.failures += 1
            slot.causes.append(cause)
        slot.not_before = now + BACKOFF_S[min(slot.failures, CRASH_LOOP - 1)]
        return slot.failures >= CRASH_LOOP

"""How a simulated worker is connected: to the coordinator by words, to its peers by operations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.opening import Opening
from trainers.simulated_copy import Meeting

if TYPE_CHECKING:
    from trainers.simulated_world import World

Wait = Iterator[None]


class Halted(Exception): ...


class Broken(Exception): ...


class Dismissed(Exception): ...


@dataclass(frozen=True)
class Operation:
    meeting: Meeting
    table: dict[int, Any]  # by rank, what those brought who have entered
    wanted: set[int]  # ranks without which it is not over


class Lines:
    def __init__(self, world: World, worker: str) -> None:
        self.world, self.id = world, worker
        self.outbox: deque[tuple[int, Any]] = deque()  # on the way to the coordinator: (number, word)
        self.inbox: deque[Any] = deque()  # on the way to here
        self.alive, self.frozen, self.cut = True, False, False
        self.connected, self.fenced = False, False  # as the coordinator sees it
        self.idles = False  # waits at a boundary to be ended
        self.stuck = False  # its training thread does nothing more, the others of its threads do
        self.finished = 0  # operations
        self.lag = 0.0  # chance that its next word stays on the way for another turn
        self.sloth = 0.0  # chance that it does nothing for another turn
        self.broken = False  # its connection broke; no word passes any more
        self.recent: deque[m.Event] = deque(maxlen=4)  # what it said last
        self.gone = False  # told to end, or the connection is closed
        self.halted = -1
        self.opening: Opening | None = None
        self.log: list[tuple[int, str]] = []
        self.meeting: Meeting | None = None
        self.waits_for: Callable[[], bool] | None = None

    def runnable(self) -> bool:
        """Would a turn of a worker that is neither dead nor frozen change anything?"""
        if self.waits_for is None or self.waits_for():
            return True
        return self.gone or (self.meeting is not None and (self._is_halted() or self._feels(self.meeting)))

    # ---- words ------------------------------------------------------------------------------

    def hear(self, message: Any) -> None:
        match message:
            case Opening():
                self.opening, self.log = message, []
            case m.Halt():
                self.halted = max(self.halted, message.generation)
            case m.Command():
                self.log.append((message.number, message.kind))
            case m.Probe():
                lost = tuple(w for w in message.workers if not self.world.reaches(self.id, w))
                self.post(m.Probed(self.id, message.generation, lost))
            case _:
                self.gone = True

    def send(self, message: Any) -> None:
        if self.gone and (self.fenced or self.broken):
            raise Dismissed
        self.post(message)

    def post(self, word: Any, *, again: bool = False) -> None:
        """Onto the line, if there is one; what goes into a broken one is lost."""
        if self.broken:
            self.world.ledger.unheard = True
            return
        self.world.ledger.unheard |= self.fenced
        self.world.sent += 1
        self.outbox.append((self.world.sent, word))
        if not (again or isinstance(word, tuple | m.Registered)):  # a connection registers once
            self.recent.append(word)

    # ---- operations -------------------------------------------------------------------------

    def meet(
        self, meeting: Meeting, kind: str, at: int, data: Any, needs: Iterable[int] | None = None
    ) -> Iterator[Any]:
        """Enter an operation with `data`; returns what came, by rank, once all of `needs` have entered."""
        came = yield from self.until(self.enter(meeting, kind, at, data, needs))
        return came

    def enter(
        self, meeting: Meeting, kind: str, at: int, data: Any, needs: Iterable[int] | None = None
    ) -> Operation:
        """Begin an operation, and go on with something else."""
        self.check(meeting)
        table = meeting.tables.setdefault((kind, at), {})
        table[meeting.opening.rank_of(self.id)] = data
        return Operation(meeting, table, set(range(meeting.world)) if needs is None else set(needs))

    def came(self, operation: Operation) -> bool:
        meeting, wanted = operation.meeting, operation.wanted
        names = meeting.opening.workers
        arrived = wanted <= operation.table.keys() and names.index(self.id) not in meeting.deaf
        return arrived and not (self.world.cuts and any(self.world.is_cut(self.id, names[r]) for r in wanted))

    def until(self, operation: Operation) -> Iterator[Any]:
        """What it brings, once it has come."""
        yield from self.wait(operation.meeting, lambda: self.came(operation))
        self.finished += 1
        return operation.table

    def wait(self, meeting: Meeting | None, ready: Callable[[], bool]) -> Wait:
        """An operation that is complete may still fail or be left, if something is wrong by then."""
        while True:
            if ready() and self.world.rng.random() < 0.7:
                break
            self.check(meeting)
            if meeting is not None and self._feels(meeting):
                raise Broken
            if ready():
                break
            self.waits_for = ready
            yield
        self.waits_for = None

    def check(self, meeting: Meeting | None) -> None:
        self.waits_for = None
        if self.gone:
            raise Dismissed
        if meeting is not None and self._is_halted():
            raise Halted

    def _is_halted(self) -> bool:
        return self.meeting is not None and self.halted >= self.meeting.opening.generation

    def _feels(self, meeting: Meeting) -> bool:
        if not meeting.hurt:
            return False
        rank = meeting.opening.rank_of(self.id)
        return meeting.feels.setdefault(rank, self.world.rng.random() < 0.5)

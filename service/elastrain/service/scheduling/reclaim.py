"""Making room for the minimum of one job: elastic jobs shrink, and only if that is not enough, jobs of lower
priority are preempted. No more than needed, and nothing at all if it would not do.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from elastrain.service.scheduling.asks import Ask
from elastrain.service.scheduling.room import SOON, Room


@dataclass
class Reclaimed:
    """shrunk: groups that each of these jobs gives back."""

    shrunk: dict[str, int] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)


def make_room(ask: Ask, groups: int, driver: bool, running: Sequence[Ask], room: Room) -> Reclaimed | None:
    """Keep room for these groups by taking it from `running`; None, and nothing changed, if that fails."""
    attempt = _Attempt(ask, groups, driver, room)
    attempt.shrink(running)
    if not attempt.done:
        attempt.preempt([other for other in running if other.priority < ask.priority])
    if not attempt.done:
        attempt.undo()
        return None
    attempt.give_back_what_was_not_needed()
    return attempt.result()


class _Attempt:
    """Releases one thing after the other until the job fits. Then each is tried whether it was needed."""

    def __init__(self, ask: Ask, groups: int, driver: bool, room: Room) -> None:
        self._ask, self._groups, self._driver, self._room = ask, groups, driver, room
        self._shrunk: list[tuple[Ask, int]] = []  # (job, where its group was), in the order of release
        self._preempted: list[tuple[Ask, list[int]]] = []
        self.done = False

    def shrink(self, running: Sequence[Ask]) -> None:
        """Group by group: from lower priority first, then from the project that has most, then what is
        worth least to its job."""
        elastic = {ask.id: ask for ask in running if ask.id != self._ask.id}
        heap = [self._key(ask) for ask in elastic.values() if self._surplus(ask) > 0]
        heapq.heapify(heap)
        while heap and not self.done:
            other = elastic[heap[0][-1]]
            self._shrunk.append((other, self._room.release(other)))
            if self._surplus(other) > 0:
                heapq.heapreplace(heap, self._key(other))
            else:
                heapq.heappop(heap)
            self._try()

    def preempt(self, lower: Sequence[Ask]) -> None:
        """The lowest priority first, then who began last and so loses least."""
        for other in sorted(lower, key=lambda ask: (ask.priority, -ask.since, ask.id)):
            if self.done:
                return
            self._preempted.append((other, self._release(other)))
            self._try()

    def give_back_what_was_not_needed(self) -> None:
        """Preemptions first, of the highest priority before the others, then single groups."""
        room = self._room
        self._drop()
        for item in list(reversed(self._preempted)):
            other, where = item
            self._restore(other, where)
            if self._fits():
                self._preempted.remove(item)
            else:
                self._release(other)
        # the last groups of a job leave first: those behind one that is needed are needed too
        needed = {other.id for other, _ in self._preempted}
        for index in reversed(range(len(self._shrunk))):
            other, at = self._shrunk[index]
            if other.id in needed:
                continue
            room.restore(other, at)
            if self._fits():
                del self._shrunk[index]
            else:
                room.release(other)
                needed.add(other.id)
        self._try()

    def undo(self) -> None:
        for other, where in reversed(self._preempted):
            self._restore(other, where)
        for other, at in reversed(self._shrunk):
            self._room.restore(other, at)

    def result(self) -> Reclaimed:
        found = Reclaimed(preempted=[other.id for other, _ in self._preempted])
        for other, _ in self._shrunk:
            if other.id not in found.preempted:
                found.shrunk[other.id] = found.shrunk.get(other.id, 0) + 1
        return found

    def _try(self) -> None:
        self.done = self._room.take(self._ask, self._groups, (SOON,), self._driver)

    def _fits(self) -> bool:
        self._try()
        if self.done:
            self._drop()
        return self.done

    def _drop(self) -> None:
        self._room.drop(self._ask, self._groups, (SOON,), self._driver)

    def _release(self, other: Ask) -> list[int]:
        where = [self._room.release(other) for _ in range(len(self._room.groups[other.id]))]
        self._room.release_driver(other)
        return where

    def _restore(self, other: Ask, where: list[int]) -> None:
        self._room.restore_driver(other)
        for at in reversed(where):
            self._room.restore(other, at)

    def _surplus(self, other: Ask) -> int:
        """Groups beyond its minimum that it still has."""
        return len(self._room.groups[other.id]) - (other.min + other.spares) // other.per_group

    def _key(self, other: Ask) -> tuple[int, float, float, str]:
        workers = len(self._room.groups[other.id]) * other.per_group - other.spares
        loss = other.curve.gain(workers - other.per_group, other.per_group)
        return other.priority, -self._room.share(other.project), loss, other.id

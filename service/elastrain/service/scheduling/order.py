"""The queue: who is asked first.

Higher priority first. Among equals the project that has the smallest part of the cluster by its weight goes
next, with its oldest job, and whatever stands before counts as if it ran: so projects take turns. Who waited
for `OVERDUE_S` no longer takes turns: it goes first among equals, the oldest first, whatever its project has.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter

from elastrain.service.scheduling.asks import Ask, Policy
from elastrain.service.scheduling.room import Room
from elastrain.service.scheduling.usage import share_of

OVERDUE_S = 3600.0
# others may compute after so many jobs
BREATH = 50


def in_order(
    asks: Iterable[Ask], room: Room, policy: Policy, breathe: Callable[[], None] = lambda: None
) -> list[Ask]:
    """These jobs, first first. breathe: is called often, to let others compute."""
    classes: defaultdict[int, list[Ask]] = defaultdict(list)
    for ask in sorted(asks, key=attrgetter("since", "id")):
        classes[ask.priority].append(ask)
    shares = _Shares(room, policy, breathe)
    found: list[Ask] = []
    for priority in sorted(classes, reverse=True):
        patient: list[Ask] = []
        for ask in classes[priority]:
            if policy.now - ask.since >= OVERDUE_S:
                found.append(ask)
                shares.count(ask)
            else:
                patient.append(ask)
        found += _in_turns(patient, shares)
    return found


def _in_turns(asks: list[Ask], shares: _Shares) -> Iterable[Ask]:
    """asks: the oldest first."""
    queues: dict[str, list[Ask]] = {}
    for ask in reversed(asks):
        queues.setdefault(ask.project, []).append(ask)
    heads = [(shares.of(project), queue[-1].since, project) for project, queue in queues.items()]
    heapq.heapify(heads)
    while heads:
        _, _, project = heads[0]
        ask = queues[project].pop()
        share = shares.count(ask)
        yield ask
        if queues[project]:
            head = (share, queues[project][-1].since, project)
            heapq.heapreplace(heads, head)
        else:
            heapq.heappop(heads)


class _Shares:
    """The part of the cluster that each project has, if those that were counted ran."""

    def __init__(self, room: Room, policy: Policy, breathe: Callable[[], None]) -> None:
        self._room, self._policy, self._breathe = room, policy, breathe
        self._counted = 0
        self._shares: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._parts: dict[tuple[object, ...], float] = {}  # jobs of few kinds are many

    def of(self, project: str) -> float:
        if project not in self._shares:
            self._shares[project] = self._room.share(project)
            self._weights[project] = self._policy.project(project).weight
        return self._shares[project]

    def count(self, ask: Ask) -> float:
        """As if it ran; its project's share then. Shares of single jobs are added up: an upper bound where
        its resources differ."""
        self._counted += 1
        if not self._counted % BREATH:
            self._breathe()
        part = self._parts.get(ask.demand)
        if part is None:
            whole = ask.whole(ask.least)
            part = self._parts[ask.demand] = share_of(whole, self._room.total)
        share = self.of(ask.project) + part / self._weights[ask.project]
        self._shares[ask.project] = share
        return share

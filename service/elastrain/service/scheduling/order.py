"""The queue: who is asked first.

Higher priority first. Among equals the project that has the smallest part of the cluster by its weight goes
next, with its oldest job, and whatever stands before counts as if it ran: so projects take turns. Who waited
for `OVERDUE_S` no longer takes turns: it goes first among equals, the oldest first, whatever its project has.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable

from elastrain.service.scheduling.asks import Ask, Policy
from elastrain.service.scheduling.room import Room

OVERDUE_S = 3600.0


def in_order(asks: Iterable[Ask], room: Room, policy: Policy) -> list[Ask]:
    """These jobs, first first."""
    classes: defaultdict[int, list[Ask]] = defaultdict(list)
    for ask in sorted(asks, key=lambda ask: (ask.since, ask.id)):
        classes[ask.priority].append(ask)
    shares: dict[str, float] = {}
    found: list[Ask] = []
    for priority in sorted(classes, reverse=True):
        patient: list[Ask] = []
        for ask in classes[priority]:
            if policy.now - ask.since >= OVERDUE_S:
                found.append(ask)
                _count(ask, shares, room, policy)
            else:
                patient.append(ask)
        found += _in_turns(patient, shares, room, policy)
    return found


def _in_turns(asks: list[Ask], shares: dict[str, float], room: Room, policy: Policy) -> Iterable[Ask]:
    """asks: the oldest first."""
    queues: dict[str, list[Ask]] = {}
    for ask in reversed(asks):
        queues.setdefault(ask.project, []).append(ask)
    heads = [(_share(project, shares, room), queue[-1].since, project) for project, queue in queues.items()]
    heapq.heapify(heads)
    while heads:
        _, _, project = heads[0]
        ask = queues[project].pop()
        _count(ask, shares, room, policy)
        yield ask
        if queues[project]:
            head = (shares[project], queues[project][-1].since, project)
            heapq.heapreplace(heads, head)
        else:
            heapq.heappop(heads)


def _share(project: str, shares: dict[str, float], room: Room) -> float:
    if project not in shares:
        shares[project] = room.share(project)
    return shares[project]


def _count(ask: Ask, shares: dict[str, float], room: Room, policy: Policy) -> None:
    """As if it ran. Shares of single jobs are added up: an upper bound where its resources differ."""
    part = [
        amount * (ask.min + ask.spares) / room.total[name]
        for name, amount in ask.worker.items()
        if room.total.get(name, 0.0) > 0
    ]
    before = _share(ask.project, shares, room)
    shares[ask.project] = before + max(part, default=0.0) / policy.project(ask.project).weight

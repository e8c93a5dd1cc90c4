"""What is left once every minimum is served: to whom it goes, and when it moves from one job to another.

The ideal is found as if all workers beyond the minima were handed out anew, group by group: to the highest
priority first; between projects to the one with the smallest part by its weight; between a project's jobs to
the one that gains most by its measured curve. A group that adds less than half a worker comes after all that
add more, and one that adds next to nothing is not handed out.

What is free goes out at once, to those below their ideal first. Workers that somebody has are only moved if
it matters (two groups, or a clear gain) and if the giver was not changed a short while ago: otherwise jobs
would be resized for noise.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from elastrain.service.scheduling.asks import Ask, Policy
from elastrain.service.scheduling.room import BOTH, SOON, Room

# parts of a worker that an additional one must be worth: to be handed out at all; before those of low gain
LEAST_GAIN = 0.1
WORTHWHILE = 0.5
# how much more a worker must be worth to another job, to be moved for that alone
CLEAR_GAIN = 0.25
# by how much the limits are lower for workers that the job has already
KEPT_LIMIT = 0.15
# a job that was shrunk is not grown, and one that was changed gives nothing up for others' gain, for so long
SETTLE_S = 60.0
# a job is not grown more often
GROW_EVERY_S = 5.0

Entry = tuple[bool, bool, float, float, str]  # as many have been served, low gain, -gain, since, id


def hand_out(
    jobs: Sequence[Ask], workers: Mapping[str, int], shrinking: Collection[str], room: Room, policy: Policy
) -> tuple[dict[str, int], dict[str, int]]:
    """-> ({job: workers}, {job: workers that it would have ideally}). jobs: those that stay or start now.
    workers: what each has after the minima were served. What they get is taken from the room."""
    ideal = _ideal(jobs, workers, room)
    growing = [ask for ask in jobs if ask.id not in shrinking and may_grow(ask, policy.now)]
    return {**workers, **_pour(growing, workers, ideal, workers, room, BOTH)}, ideal


def to_move(
    jobs: Sequence[Ask], workers: Mapping[str, int], ideal: Mapping[str, int], now: float
) -> dict[str, int]:
    """{job: workers} of those that give some up for others, or because they are slower with them."""
    wanting = [ask for ask in jobs if workers[ask.id] < ideal[ask.id]]
    wanted = sum(ideal[ask.id] - workers[ask.id] for ask in wanting)
    best = max((_next(ask, workers[ask.id]) for ask in wanting), default=0.0)
    found: dict[str, int] = {}
    for ask in sorted(jobs, key=lambda ask: (ideal[ask.id] - workers[ask.id], ask.id)):
        have, extra = workers[ask.id], workers[ask.id] - ideal[ask.id]
        if extra <= 0 or now - max(ask.grown_at, ask.shrunk_at) < SETTLE_S:
            continue
        last = _next(ask, have - ask.per_group)
        matters = extra >= 2 * ask.per_group or best - last >= CLEAR_GAIN
        given = min(extra, -(-wanted // ask.per_group) * ask.per_group) if matters else 0
        if last < -LEAST_GAIN:
            given = max(given, ask.per_group)
        if given > 0:
            found[ask.id] = have - given
            wanted -= min(wanted, given)
    return found


def may_grow(ask: Ask, now: float) -> bool:
    return now - ask.shrunk_at >= SETTLE_S and now - ask.grown_at >= GROW_EVERY_S


def _next(ask: Ask, workers: int) -> float:
    return ask.curve.gain(workers, ask.per_group)


def _ideal(jobs: Sequence[Ask], workers: Mapping[str, int], room: Room) -> dict[str, int]:
    """Everything beyond the minima is put back, poured anew, and all of it undone."""
    released: list[tuple[Ask, int]] = []
    start = dict(workers)
    for ask in jobs:
        while start[ask.id] - ask.per_group >= ask.min:
            released.append((ask, room.release(ask)))
            start[ask.id] -= ask.per_group
    found = _pour(jobs, start, None, workers, room, (SOON,))
    for ask in jobs:
        if more := (found[ask.id] - start[ask.id]) // ask.per_group:
            room.drop(ask, more, (SOON,), driver=False)
    for ask, at in reversed(released):
        room.restore(ask, at)
    return found


def _pour(
    jobs: Sequence[Ask],
    workers: Mapping[str, int],
    ideal: Mapping[str, int] | None,
    kept: Mapping[str, int],
    room: Room,
    pools: tuple[int, ...],
) -> dict[str, int]:
    """Group by group to whoever is first, until nobody can take one more. kept: what jobs have already."""
    have = dict(workers)
    queues: dict[tuple[str, int], list[Entry]] = {}

    def push(ask: Ask) -> None:
        gain, has = _next(ask, have[ask.id]), have[ask.id] < kept[ask.id]
        limit = gain + KEPT_LIMIT * has
        if have[ask.id] + ask.per_group <= ask.max and limit >= LEAST_GAIN:
            served = ideal is not None and have[ask.id] >= ideal[ask.id]
            entry = (served, limit < WORTHWHILE, -gain, ask.since, ask.id)
            heapq.heappush(queues.setdefault((ask.project, -ask.priority), []), entry)

    def rank(key: tuple[str, int]) -> tuple[Any, ...]:
        served, low, *rest = queues[key][0]
        return served, low, key[1], room.share(key[0]), *rest

    by_id = {ask.id: ask for ask in jobs}
    for ask in jobs:
        push(ask)
    while filled := [key for key, queue in queues.items() if queue]:
        ask = by_id[heapq.heappop(queues[min(filled, key=rank)])[-1]]
        if room.take(ask, 1, pools, driver=False):
            have[ask.id] += ask.per_group
            push(ask)
    return have

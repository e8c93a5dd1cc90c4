"""What the coordinator says when it opens a generation, and how it says it in few words. No torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastrain.trainers.membership.balance import Balance, Pace
from elastrain.trainers.membership.messages import Json, Open, Range
from elastrain.trainers.numerics.chunks import Domain


@dataclass(frozen=True)
class Opening:
    """What the coordinator says when it opens a generation."""

    generation: int
    members: tuple[Json, ...]  # rank order: {worker, group, node, address}
    step: int
    cursor: Json | None
    record: Json | None
    held: dict[str, list[Range]]  # by those who do not hold exactly what the layout `before` gives them
    whole: tuple[str, ...]
    done: dict[str, list[int]]
    restore: Json | None  # {"manifest": None | {...}, "prefix": "..."}; None: go on
    saved_step: int
    pace: Json | None = None  # what is known of the members' speeds (balance.py)
    hold: bool = False  # compute nothing: make a checkpoint, and wait
    before: tuple[Domain, ...] = ()  # members of an earlier generation, by their ranks in it

    @classmethod
    def from_json(cls, data: Json) -> Opening:
        return cls(
            data["generation"],
            tuple(data["members"]),
            data["step"],
            data["cursor"],
            data["record"],
            {w: [(a, b) for a, b in ranges] for w, ranges in data["held"].items()},
            tuple(data["whole"]),
            data["done"],
            data["restore"],
            data["saved_step"],
            data.get("pace"),
            data.get("hold", False),
            tuple(_domain(m, data["members"]) for m in data.get("before", ())),
        )

    @property
    def workers(self) -> list[str]:
        return [str(member["worker"]) for member in self.members]

    def of_shard(self, number: int) -> Opening:
        """As process `number` of a worker sees it: it meets those of the same number."""
        if number == 0:
            return self
        addresses = [m["address"]["shards"][number - 1] for m in self.members]
        members = tuple({**m, "address": a} for m, a in zip(self.members, addresses, strict=True))
        return replace(self, members=members)

    def of_keepers(self) -> Opening:
        """As those see it who keep state, where they meet by themselves: the first ranks."""
        members = tuple(m for m in self.members if m.get("keeps", True))
        names = {m["worker"] for m in members}
        pace = self.pace and {**self.pace, "seconds": self.pace["seconds"][: len(members)]}
        held = {w: ranges for w, ranges in self.held.items() if w in names}
        done = {w: kept for w, kept in self.done.items() if w in names}
        whole = tuple(w for w in self.whole if w in names)
        return replace(self, members=members, held=held, whole=whole, done=done, pace=pace)

    def rank_of(self, worker: str) -> int:
        return self.workers.index(worker)

    def balance(self) -> Balance:
        """The assignment as all members begin with it."""
        workers = self.workers
        pace = Pace.from_json(self.pace, workers) if self.pace is not None else Pace()
        keeps = [d.keeps for d in self.domains()]
        return Balance(workers, pace, () if all(keeps) else [r for r, k in enumerate(keeps) if k])

    def domains(self) -> list[Domain]:
        return [_domain(rank, self.members) for rank in range(len(self.members))]

    @functools.cached_property
    def same(self) -> dict[str, int]:
        """Members that hold what the layout `before` gives them -> their ranks in it."""
        members = set(self.workers)
        ranks = {d.worker: rank for rank, d in enumerate(self.before)}
        return {w: r for w, r in ranks.items() if w in members and w not in self.held}

    def survivors(self) -> list[int]:
        """Ranks of those who hold something; the others are joiners."""
        return [r for r, w in enumerate(self.workers) if w in self.same or self.held.get(w)]


def thin(members: Sequence[Json], action: Open, before: Sequence[Json]) -> Json:
    """What an opening says of its members and of what they hold, without saying anything twice: a thousand
    members hold tens of thousands of chunks, and nearly all of them just what their last layout gave them.

    members, before: {worker, group, node, ...} by rank, and `keeps: false` for those without state; before:
    of the generation that `action.same` names.
    """
    _, holders = action.same
    if not holders:
        return {"members": members, "held": action.held}
    ranks, same = {m["worker"]: rank for rank, m in enumerate(members)}, set(holders)
    known = {m["worker"] for m in before} & ranks.keys()
    return {
        "members": members,
        "before": [ranks[m["worker"]] if m["worker"] in ranks else _gone(m) for m in before],
        "held": {w: action.held.get(w, ()) for w in {**action.held, **dict.fromkeys(known)} if w not in same},
    }


def _gone(member: Json) -> list[Any]:
    """What `before` says of one that is no member any more."""
    return [
        member["worker"],
        member["group"],
        member["node"],
        *([] if member.get("keeps", True) else [False]),
    ]


def _domain(said: int | list[Any], members: Sequence[Json]) -> Domain:
    """One of `before`: a member's rank, or (worker, group, node[, keeps]) of one that is gone."""
    if isinstance(said, int):
        member = members[said]
        return Domain(member["worker"], member["group"], member["node"], member.get("keeps", True))
    return Domain(*said)

"""Members that were told to end, and how much haste that is. Pure.

A notice leaves half of its time for a boundary to come by itself, where the others go on without whoever
leaves. From then on a generation is ended in the middle of a step; and where nobody is left to take over the
state, or too few to train, the next one holds: it hands over and saves, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastrain.trainers.generation import Generation
from elastrain.trainers.roster import Group, Roster, Worker


@dataclass(frozen=True)
class Leavers:
    """Of one generation."""

    groups: Sequence[Group]
    stay: int  # workers
    urgent: bool

    @classmethod
    def of(cls, generation: Generation, roster: Roster, now: float) -> Leavers:
        groups = [g for g in roster.leaving() if roster.trains(g)]
        stay = len(generation.members) - sum(len(g.workers) for g in groups)
        return cls(groups, stay, any(g.urgent(now) for g in groups))

    def may_go(self, joiners: int, minimum: int) -> bool:
        """Can the others go on without them from the next boundary?"""
        return bool(self.groups) and self.stay > 0 and self.stay + joiners >= minimum

    def cannot_wait(self, generation: Generation, joiners: int, finishing: bool) -> bool:
        """Must the generation end at once, in the middle of a step?"""
        if not self.urgent:
            return False
        if generation.hold:
            return bool(self.stay or joiners) and not finishing
        return not generation.somebody_idles


def has_to_hold(members: Iterable[Worker], roster: Roster, minimum: int, finishing: bool, now: float) -> bool:
    """Are these to hand over, or save, what some of them cannot keep, instead of computing another step?"""
    groups = [roster.groups[w.group] for w in members]
    if not any(group.urgent(now) for group in groups):
        return False
    return finishing or len(groups) < minimum or all(group.leaving for group in groups)

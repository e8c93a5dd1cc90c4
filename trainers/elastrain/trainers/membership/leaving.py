"""Members that were told to end, and how much haste that is. Pure.

A notice leaves half of its time for a boundary to come by itself, where the others go on without whoever
leaves. From then on a generation is ended in the middle of a step; and where nobody is left to take over the
state, or too few to train, the next one holds: it hands over and saves, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastrain.trainers.membership.generation import Generation
from elastrain.trainers.membership.policy import Policy
from elastrain.trainers.membership.roster import Group, Roster, Worker


@dataclass(frozen=True)
class Leavers:
    """Of one generation."""

    groups: Sequence[Group]
    staying: Sequence[Worker]
    urgent: bool

    @classmethod
    def of(cls, generation: Generation, roster: Roster, now: float) -> Leavers:
        groups = [g for g in roster.leaving() if roster.trains(g)]
        leaving = {w for g in groups for w in g.workers}
        staying = generation.members if not groups else [w for w in generation.members if w.id not in leaving]
        return cls(groups, staying, any(g.urgent(now) for g in groups))

    @property
    def stay(self) -> bool:
        """Is a worker left?"""
        return any(not w.server for w in self.staying)

    def may_go(self, joiners: Sequence[Worker], policy: Policy) -> bool:
        """Can the others go on without them from the next boundary?"""
        return bool(self.groups) and self.stay and policy.suffice([*self.staying, *joiners])

    def cannot_wait(self, generation: Generation, joiners: Sequence[Worker], finishing: bool) -> bool:
        """Must the generation end at once, in the middle of a step?"""
        if not self.urgent:
            return False
        if generation.hold:
            return bool(self.stay or joiners) and not finishing
        return not generation.somebody_idles


def has_to_hold(
    members: Iterable[Worker], roster: Roster, suffice: bool, finishing: bool, now: float
) -> bool:
    """Are these to hand over, or save, what some of them cannot keep, instead of computing another step?
    suffice: are there enough of them to train?"""
    groups = [roster.groups[w.group] for w in members]
    if not any(group.urgent(now) for group in groups):
        return False
    return finishing or not suffice or all(group.leaving for group in groups)

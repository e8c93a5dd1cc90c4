"""How often a group is started again before the attempt gives up. Pure.

A slot is in a crash loop after five starts in a row without a committed step. A spare that nobody needed yet
ends nothing by failing. As long as no worker was ever ready, starts that fail in all slots are counted
together: with twenty slots nobody wants to see a hundred of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastrain.trainers.membership.roster import CRASH_LOOP, Group, Roster, State

COLD_START_S = 30.0  # a start that takes longer than this holds up no other one


@dataclass
class Starts:
    roster: Roster
    causes: list[str] = field(default_factory=list)  # of failed starts, as long as no worker was ever ready
    succeeded: bool = False

    def at_once(self) -> int | None:
        """How many groups may be started now; None: any number. While nothing is known but that starts fail,
        one more will tell."""
        if not self.causes:
            return None
        tried = [g for g in self.roster.running() if g.age_s < COLD_START_S]
        starting = any(w.state is State.STARTING for g in tried for w in self.roster.peers(g.id))
        return 0 if starting or any(g.failure is not None for g in tried) else 1

    def ready(self) -> None:
        """A worker is ready."""
        self.succeeded = True
        self.causes.clear()

    def failed(
        self, group: Group, why: str, now: float, *, wanted: int, slots: int, spare: bool
    ) -> str | None:
        """A group ended too early. A text: it is useless to start another one.

        wanted: groups that are to be members. slots: those and the spares. spare: it was ready, no member.
        """
        roster = self.roster
        serving = roster.serving(group.server)
        needed = sum(roster.trains(g) or roster.is_ready(g) for g in serving) < wanted
        looping = self.roster.charge(group, why, now, well=spare and not needed)
        if not self.succeeded:
            self.causes.append(why)
        if looping and needed:
            causes = "; ".join(self.roster.slots[group.slot].causes)
            return f"group slot {group.slot} failed {CRASH_LOOP} times without a committed step: {causes}"
        if len(self.causes) >= CRASH_LOOP and self.roster.all_failed(slots):
            return f"no worker became ready in {len(self.causes)} starts: {'; '.join(self.causes)}"
        return None

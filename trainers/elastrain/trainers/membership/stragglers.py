"""Who is slow for good, and says so once. Pure, no torch.

A worker that gets less work because it is slow costs the others nothing any more, but somebody should look at
its machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from elastrain.trainers.membership.balance import Pace

SLOW = 2.0  # times the seconds of the others: less than half of their speed
WELL_AGAIN = 1.5  # times; between the two nothing changes
STEPS = 5  # in a row


@dataclass(frozen=True)
class Change:
    worker: str
    slow: bool  # False: it is no longer
    seconds: float  # per microbatch
    others: float  # per microbatch, the median of the other workers

    @property
    def times(self) -> float:
        return self.seconds / self.others


@dataclass
class Stragglers:
    slow: set[str] = field(default_factory=set)  # those that were named
    _row: dict[str, int] = field(default_factory=dict)  # worker -> steps in a row that speak for a change

    def look(self, pace: Pace, workers: Sequence[str]) -> list[Change]:
        """After each committed step: what became of whom. Workers that were not measured yet are left out."""
        seconds = {w: pace.estimates[w].seconds for w in workers if w in pace.estimates}
        self.slow &= set(workers)
        ordered, changes, row = sorted(seconds.values()), [], {}
        at = (len(ordered) - 2) // 2  # of the lower median, once one is taken out
        for worker, own in seconds.items() if len(ordered) > 1 else ():
            others = ordered[at + 1] if own <= ordered[at] else ordered[at]
            differs = own < WELL_AGAIN * others if worker in self.slow else own > SLOW * others
            if differs:
                row[worker] = self._row.get(worker, 0) + 1
            if row.get(worker) == STEPS:
                del row[worker]
                self.slow ^= {worker}
                changes.append(Change(worker, worker in self.slow, own, others))
        self._row = row
        return changes

"""What says that training goes wrong by itself: spikes of the loss. Pure.

All of it follows from the cursor, which every member has alike, by additions, multiplications and
comparisons, which IEEE 754 rounds alike on every machine. So all come to the same, in any generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastrain.trainers.spec.stability import LossSpike

LEAST_SPREAD = 0.05  # of the median: a loss that hardly moves would spike at every breath


@dataclass(frozen=True)
class Expected:
    """What the losses of the last steps let expect of the next one."""

    median: float
    spread: float  # the upper decile minus the median, or LEAST_SPREAD of the median

    @classmethod
    def of(cls, losses: Sequence[float]) -> Expected:
        """Order statistics: one loss in ten may be anything, and losses that are skewed to the right, as they
        are late in training, have a larger spread. losses: at least one, finite."""
        ordered = sorted(losses)
        last = len(ordered) - 1
        median = (ordered[last // 2] + ordered[len(ordered) // 2]) / 2
        return cls(median, max(ordered[last * 9 // 10] - median, LEAST_SPREAD * abs(median)))

    def limit(self, threshold: float) -> float:
        """A loss above it is a spike."""
        return self.median + threshold * self.spread


def spikes(losses: Sequence[float], loss: float, rule: LossSpike) -> bool:
    """Does `loss` lie far above `losses`, those of the applied steps before it, up to rule.window of them?"""
    if rule.policy == "off" or 2 * len(losses) < rule.window:
        return False
    return loss > Expected.of(losses).limit(rule.threshold)


def remembered(losses: Sequence[float], loss: float, rule: LossSpike) -> tuple[float, ...]:
    """What to compare the next loss with. A spike is among them: a loss that stays high is soon usual."""
    return (*losses, loss)[-rule.window :] if rule.policy != "off" else ()

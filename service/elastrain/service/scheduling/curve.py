"""How much faster a job gets with more workers, as far as it was measured.

What was not measured is guessed from the nearest measurements: speed grows like workers ** 0.9 at most, so
that of two jobs of which nothing is known the smaller one gains more, and they are levelled. A guess is
corrected by the first measurement that it leads to.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

GUESS = 0.9
# what one new measurement changes at least, as a part of the old value: single ones are noise
WEIGHT = 0.05
# a job that was measured with more numbers of workers than this forgets another one, measured least
KEPT = 64
# a driver reports the speed of its last so many steps
WINDOW_STEPS = 10

Measured = dict[str, list[float]]
"""{workers: [samples per second, how often it was measured]}"""


class Memory(TypedDict):
    """What is known of a job's speed, as the store keeps it. at: [workers, step] since when nothing changed
    and nothing was measured."""

    at: list[int]
    points: Measured


def observe(known: Memory | None, workers: int, step: int, samples_per_s: float) -> Memory:
    """With what a driver reports: a speed counts once its whole window lies behind the last change, and each
    step counts once."""
    points = known["points"] if known else {}
    if known is None or known["at"][0] != workers or step < known["at"][1]:
        return {"at": [workers, step], "points": points}
    if step - known["at"][1] <= WINDOW_STEPS:
        return known
    return {"at": [workers, step], "points": learn(points, workers, samples_per_s)}


def learn(known: Measured, workers: int, samples_per_s: float) -> Measured:
    """With one more measurement: the mean of the first ones, later ones count `WEIGHT`."""
    if workers < 1 or not 0 < samples_per_s < math.inf:
        return known
    speed, times = known.get(str(workers), [0.0, 0])
    times += 1
    speed += (samples_per_s - speed) * max(WEIGHT, 1 / times)
    learned = {**known, str(workers): [round(speed, 3), min(times, 1 / WEIGHT)]}
    if len(learned) > KEPT:
        del learned[min(learned.keys() - {str(workers)}, key=lambda count: (learned[count][1], int(count)))]
    return learned


def curve_of(known: Measured) -> Curve:
    return Curve(tuple(sorted((int(count), speed) for count, (speed, _) in known.items() if speed > 0)))


@dataclass(frozen=True)
class Curve:
    """points: (workers, samples per second), ascending by workers, each above 0."""

    points: tuple[tuple[int, float], ...] = ()

    def speed(self, workers: int) -> float:
        """Samples per second; in units of one worker if nothing was measured."""
        if workers <= 0:
            return 0.0
        if not self.points:
            return float(workers**GUESS)
        after = bisect_right(self.points, (workers, math.inf))
        if after == 0:  # with fewer workers each counts at least as much, but nobody knows how much more
            (first, speed), bend = self.points[0], (self._bend(0) + GUESS) / 2
            return speed * float((workers / first) ** bend)
        low, below = self.points[after - 1]
        if after == len(self.points):
            return below * float((workers / low) ** self._bend(after - 2))
        high, above = self.points[after]
        return below + (above - below) * (workers - low) / (high - low)

    def gain(self, workers: int, more: int) -> float:
        """What each of `more` workers beside `workers` adds, in units of the job's best worker: 1 is linear
        scaling, 0 none, and below 0 they are in the way."""
        return (self.speed(workers + more) - self.speed(workers)) / more / self._unit

    @cached_property
    def _unit(self) -> float:
        return max([self.speed(1), *(speed / count for count, speed in self.points)])

    def _bend(self, index: int) -> float:
        """The exponent by which speed grows from this point to the next."""
        if not 0 <= index < len(self.points) - 1:
            return GUESS
        (low, below), (high, above) = self.points[index : index + 2]
        return min(GUESS, max(0.0, math.log(above / below) / math.log(high / low)))

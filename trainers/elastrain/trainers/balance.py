"""Who computes which microbatches, by measured speed. Pure, no torch.

Every member works out the assignment by itself, so it has to come out alike everywhere. It follows from
numbers that all members have: what the opening says of their speeds, then the commit records, in order. Only
+ - * / and square roots are made of them, which IEEE 754 rounds alike on every machine; a logarithm is not.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastrain.trainers.messages import Json

DRIFT = 0.001  # relative variance by which a speed is taken to change in one step: about 3 %
NOISE = 1.0  # relative variance of one microbatch's time, until it is known
NOISE_STEPS = 20  # over about so many steps it is learned
UNKNOWN = 0.1  # relative variance of the speeds of workers before they are measured: they differ by 30 %
CARRIED = 0.01  # relative variance of an estimate that comes from an earlier generation
FASTEST = 1e-7  # s; a clock that stood still must not make a worker infinitely fast
WORTH = (
    0.05  # gain of a step's time below which the assignment stays as it is, however sure the estimates are
)
EASE = 0.99  # per step: a slow worker that computes nothing is trusted a little more, until it is tried again


@dataclass(frozen=True)
class Estimate:
    seconds: float  # per microbatch
    doubt: float  # relative variance


class Pace:
    """Seconds per microbatch of every worker, smoothed over the committed steps.

    A Kalman filter in one dimension for each worker, in relative terms (R. E. Kalman, 1960): the less the
    times of single microbatches say, since samples differ in cost, the less one step moves the estimate. How
    much they say is learned too: from the surprise of the worker in the middle, so that one which really
    changes its speed does not make the others' times look unreliable.
    """

    def __init__(self, known: Mapping[str, float] | None = None, noise: float = NOISE) -> None:
        self.estimates = {w: Estimate(s, CARRIED) for w, s in (known or {}).items()}
        self.noise = noise  # relative variance of one microbatch's seconds
        self._steps = NOISE_STEPS if known else 1  # that went into it
        self._met: set[str] = set()  # computed once: a first time is longer, and says nothing

    def observe(self, record: Json) -> None:
        """Learn from one commit record: `seconds` {worker: [microbatches, seconds]} and `workers`."""
        workers, measured = record["workers"], record["seconds"]
        known = [e.seconds for e in self.estimates.values()]
        usual = middle(known or [seconds / count for count, seconds in measured.values() if count])
        surprises = []
        for worker in workers:
            count, seconds = measured.get(worker, (0, 0.0))
            before = self.estimates.get(worker)
            if before is None:
                if worker in self._met and count and usual > 0:
                    first = Estimate(usual, UNKNOWN)
                    self.estimates[worker] = self._corrected(first, seconds / count / usual - 1.0, count)
                elif count:
                    self._met.add(worker)
            elif count:
                surprise = seconds / count / before.seconds - 1.0
                surprises.append(surprise * surprise * count)
                self.estimates[worker] = self._corrected(before, surprise, count)
            else:
                eased = max(before.seconds * EASE, min(usual, before.seconds))
                self.estimates[worker] = Estimate(eased, before.doubt + DRIFT)
        if surprises:  # a median of squares is about half of their mean
            self._steps = min(self._steps + 1, NOISE_STEPS)
            self.noise += (2.0 * middle(surprises) - self.noise) / self._steps
        self.estimates = {w: e for w, e in self.estimates.items() if w in measured or w in workers}

    def _corrected(self, before: Estimate, surprise: float, count: int) -> Estimate:
        doubt = before.doubt + DRIFT
        gain = doubt / (doubt + self.noise / count)
        seconds = before.seconds * (1.0 + gain * surprise)
        return Estimate(max(seconds, FASTEST), (1.0 - gain) * doubt)

    def of(self, workers: Sequence[str]) -> list[Estimate]:
        """By rank. One that was not measured yet is taken to be as fast as the one in the middle."""
        known = [self.estimates[w].seconds for w in workers if w in self.estimates]
        usual = Estimate(middle(known) if known else 1.0, CARRIED)
        return [self.estimates.get(w, usual) for w in workers]

    # ---- as the opening of a generation carries it ------------------------------------------

    def to_json(self, workers: Sequence[str]) -> Json:
        """By rank, 0 for what is not known; four digits are plenty."""
        seconds = [self.estimates[w].seconds if w in self.estimates else 0.0 for w in workers]
        return {"noise": _short(self.noise), "seconds": [_short(s) for s in seconds]}

    @classmethod
    def from_json(cls, data: Json, workers: Sequence[str]) -> Pace:
        return cls({w: s for w, s in zip(workers, data["seconds"], strict=True) if s > 0}, data["noise"])


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def middle(values: Sequence[float]) -> float:
    """The lower median; 0 of nothing."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


# ---- the assignment ----------------------------------------------------------------------------


def share_out(seconds: Sequence[float], count: int) -> list[int]:
    """How many of `count` microbatches each rank computes, such that the last one is done as early as can
    be: each next one goes to whoever would be done with it first. seconds: per microbatch, by rank."""
    shares = [0] * len(seconds)
    queue = [(s, rank) for rank, s in enumerate(seconds)]  # (when it would be done with one more, rank)
    heapq.heapify(queue)
    for _ in range(count):
        _, rank = queue[0]
        shares[rank] += 1
        heapq.heapreplace(queue, (seconds[rank] * (shares[rank] + 1), rank))
    return shares


class Balance:
    """The assignments of one generation. Every member has its own, and they never differ."""

    def __init__(self, workers: Sequence[str], pace: Pace) -> None:
        self.workers, self.pace = list(workers), pace
        self.shares: dict[int, list[int]] = {}  # microbatches of a step -> how many each rank computes

    def observe(self, record: Json) -> None:
        self.pace.observe(record)

    def deal(self, count: int, done: Sequence[Sequence[int]] | None = None) -> list[list[int]]:
        """Which of `count` microbatches each rank computes: what nobody has done yet, in contiguous runs.

        done[r]: microbatches whose gradients rank r keeps from a generation that broke.
        """
        kept = {j for d in done or () for j in d}
        missing = [j for j in range(count) if j not in kept]
        paces = self.pace.of(self.workers)
        shares = share_out([p.seconds for p in paces], len(missing)) if kept else self._usual(count, paces)
        dealt, at = [], 0
        for share in shares:
            dealt.append(missing[at : at + share])
            at += share
        return dealt

    def _usual(self, count: int, paces: Sequence[Estimate]) -> list[int]:
        """The shares of a whole step. They change only if that is worth more than the estimates' doubt: noise
        alone must not send everyone other microbatches in every step."""
        best, now = share_out([p.seconds for p in paces], count), self.shares.get(count)
        if now is None or now == best:
            return self.shares.setdefault(count, best)
        ends = [n * p.seconds for n, p in zip(now, paces, strict=True)]
        last = ends.index(max(ends))
        soonest = max(n * p.seconds for n, p in zip(best, paces, strict=True))
        if ends[last] > soonest * (1.0 + WORTH + math.sqrt(paces[last].doubt)):
            self.shares[count] = best
        return self.shares[count]

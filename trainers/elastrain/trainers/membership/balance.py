"""Who computes which microbatches, by measured speed. Pure, no torch.

Every member works out the assignment by itself, so it has to come out alike everywhere. It follows from
numbers that all members have: what the opening says of their speeds, then the commit records, in order. Only
+ - * / and square roots are made of them, which IEEE 754 rounds alike on every machine; a logarithm is not.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastrain.trainers.membership.messages import Json

DRIFT = 0.001  # relative variance by which a speed is taken to change in one step: about 3 %
NOISE = 1.0  # relative variance of one microbatch's time, until it is known
QUIET = 1e-4  # no clock is better than 1 %
NOISE_STEPS = 20  # over about so many steps it is learned
BURST = 4.0  # times; a worker that changes its speed must not make all times look unreliable
BELIEVED = 4.0  # times slower or faster, of what one step says: a hiccup is no slow worker
TIDE = 0.2  # of what takes everybody longer, the estimates follow so much per step
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
    much they say is learned too, from how far apart the workers come out of a step. What takes everybody
    longer (a step of long samples, a busy machine) says nothing about anyone: it is taken out first.
    """

    def __init__(self, known: Mapping[str, float] | None = None, noise: float = NOISE) -> None:
        self.estimates = {w: Estimate(s, CARRIED) for w, s in (known or {}).items()}
        self.noise = max(noise, QUIET)  # relative variance of one microbatch's seconds
        self._steps = NOISE_STEPS if known else 1  # that went into it
        self._met: set[str] = set()  # computed once: a first time is longer, and says nothing

    def observe(self, record: Json) -> None:
        """Learn from one commit record: `seconds` {worker: [microbatches, seconds]} and `workers`."""
        counts = {w: n for w, (n, _) in record["seconds"].items() if n}
        times = {w: max(s / n, FASTEST) for w, (n, s) in record["seconds"].items() if n}
        before = {w: self.estimates[w] for w in record["workers"] if w in self.estimates}
        ratios = {w: times[w] / e.seconds for w, e in before.items() if w in times}
        tide = statistics.median(ratios.values()) if ratios else 1.0  # it took everybody so much longer
        usual = middle([e.seconds for e in before.values()] or list(times.values()))
        after: dict[str, Estimate] = {}
        for worker in record["workers"]:
            if worker in ratios:
                after[worker] = self._corrected(before[worker], ratios[worker] / tide, counts[worker])
            elif worker in before:
                eased = max(before[worker].seconds * EASE, min(usual, before[worker].seconds))
                after[worker] = Estimate(eased, before[worker].doubt + DRIFT)
            elif worker in times and worker in self._met:
                ratio = times[worker] / (usual * tide)
                after[worker] = self._corrected(Estimate(usual, UNKNOWN), ratio, counts[worker])
            elif worker in times:
                self._met.add(worker)
        self._listen({w: r / tide for w, r in ratios.items()}, counts)
        drift = 1.0 + TIDE * (tide - 1.0)
        self.estimates = {w: Estimate(max(e.seconds * drift, FASTEST), e.doubt) for w, e in after.items()}

    def _corrected(self, before: Estimate, ratio: float, count: int) -> Estimate:
        """ratio: what was measured to what was expected."""
        ratio = min(max(ratio, 1.0 / BELIEVED), BELIEVED)
        doubt = before.doubt + DRIFT
        gain = doubt / (doubt + self.noise / count)
        return Estimate(before.seconds * (1.0 + gain * (ratio - 1.0)), (1.0 - gain) * doubt)

    def _listen(self, ratios: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """How far apart were those who should have come out alike?"""
        if len(ratios) > 1:
            self._steps = min(self._steps + 1, NOISE_STEPS)
            noise = sum(counts[w] * (r - 1.0) * (r - 1.0) for w, r in ratios.items()) / (len(ratios) - 1)
            self.noise += (max(QUIET, min(noise, BURST * self.noise)) - self.noise) / self._steps

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

    def __init__(self, workers: Sequence[str], pace: Pace, servers: Sequence[int] = ()) -> None:
        """servers: ranks that compute nothing."""
        self.workers, self.pace = list(workers), pace
        self.computing = [rank for rank in range(len(workers)) if rank not in servers]
        self.shares: dict[int, list[int]] = {}  # units of a step -> how many each of them computes

    def observe(self, record: Json) -> None:
        self.pace.observe(record)

    def deal(self, count: int, done: Sequence[Sequence[int]] | None = None, unit: int = 1) -> list[list[int]]:
        """Which of `count` microbatches each rank computes: what nobody has done yet, in contiguous runs of
        whole units.

        done[r]: microbatches whose gradients rank r keeps from a generation that broke, in whole units.
        unit: microbatches of a unit, which one rank computes alone; the last one may have fewer.
        """
        kept = {j for d in done or () for j in d}
        units = [range(j, min(j + unit, count)) for j in range(0, count, unit)]
        missing = [u for u in units if u.start not in kept]
        paces = self.pace.of([self.workers[rank] for rank in self.computing])
        seconds = [p.seconds for p in paces]
        shares = share_out(seconds, len(missing)) if kept else self._usual(len(units), paces)
        dealt: list[list[int]] = [[] for _ in self.workers]
        at = 0
        for rank, share in zip(self.computing, shares, strict=True):
            dealt[rank] = [j for u in missing[at : at + share] for j in u]
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

"""What projects use, and how much of what there is that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from elastrain.service.scheduling.asks import Resources

# 0.1 + 0.2 CPUs are 0.3
EPSILON = 1e-6


class Usage:
    """What the projects use."""

    def __init__(self) -> None:
        self.workers: defaultdict[str, int] = defaultdict(int)
        self.resources: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))

    def add(self, project: str, each: Resources, number: int) -> None:
        """So many more workers, or servers, which count as such."""
        self.workers[project] += number
        for name, amount in each.items():
            self.resources[project][name] += amount * number

    def of(self, project: str) -> tuple[int, float]:
        """(workers, GPUs)"""
        return self.workers[project], self.resources[project]["GPU"]


def share_of(resources: Resources, total: Mapping[str, float]) -> float:
    """The dominant share: the largest part of any resource."""
    return max((amount / total[n] for n, amount in resources.items() if total.get(n, 0.0) > 0), default=0.0)


def count(node: Resources, group: Resources) -> int:
    """How many such groups fit on what is left of a node."""
    least = float("inf")  # asked a hundred thousand times in a round: a loop is half as dear as a generator
    for name, amount in group.items():
        fits = (node.get(name, 0.0) + EPSILON) // amount
        if fits < least:
            least = fits
    return max(0, int(least))


def beside(nodes: Sequence[Resources], pieces: Sequence[Resources], group: Resources, groups: int) -> int:
    """How many of these groups fit on the nodes beside the pieces, each where most of them would fit, up to
    `groups`; none if the pieces themselves do not."""
    left = [dict(node) for node in nodes]
    for piece in (p for p in pieces if p):
        fits = [count(node, piece) for node in left]
        if not any(fits):
            return 0
        at = fits.index(max(fits))
        left[at] = {name: amount - piece.get(name, 0.0) for name, amount in left[at].items()}
    return min(groups, sum(count(node, group) for node in left)) if group else groups

"""Which worker is it that keeps other bits than the others? Pure.

Of two copies that differ nobody knows which one is wrong. More than one disagreement tells: whoever differs
from several others is removed; if it is the same two again, both are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HOPELESS = 3  # disagreements in a row without getting any further
SHOWN = 4  # pairs in a message


@dataclass(frozen=True)
class Difference:
    """The state of some blocks is not the same on the worker that owns them and on its buddy."""

    owner: str
    buddy: str
    blocks: tuple[tuple[int, int], ...]  # [start, stop) each


@dataclass(frozen=True)
class Disagreement:
    """What a comparison at a boundary found."""

    step: int
    agreed: int  # step of the last comparison that found nothing; -1: there was none
    differences: tuple[Difference, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Disagreement:
        found = [
            Difference(d["owner"], d["buddy"], tuple((a, b) for a, b in d["blocks"]))
            for d in data["differences"]
        ]
        return cls(data["step"], data["agreed"], tuple(found))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Suspicion:
    """Remembers the disagreement before."""

    _pairs: set[frozenset[str]] = field(default_factory=set)
    _step: int = -1
    _row: int = 0

    def judge(self, found: Disagreement, nodes: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
        """The event for people: its message, and its data with `removed`, the workers that must not go on.
        nodes: of each worker."""
        removed = self.blame(found)
        named = {w: nodes[w] for d in found.differences for w in (d.owner, d.buddy)}
        return told(found, named, removed), {**found.to_json(), "nodes": named, "removed": list(removed)}

    def blame(self, found: Disagreement) -> tuple[str, ...]:
        """Workers that must not go on."""
        pairs = {frozenset((d.owner, d.buddy)) for d in found.differences}
        known, again = pairs | self._pairs, pairs & self._pairs
        self._row = self._row + 1 if found.step <= self._step else 1
        self._pairs, self._step = pairs, found.step
        suspects = sorted(frozenset().union(*pairs))
        partners = {w: len(frozenset().union(*(p for p in known if w in p))) - 1 for w in suspects}
        several = tuple(w for w in suspects if partners[w] > 1)
        if len(several) == len(suspects) > 2:  # everybody differs from everybody
            several = ()
        return several or tuple(sorted(frozenset().union(*again)))

    @property
    def hopeless(self) -> bool:
        """The same step does not come out alike, however often it is tried."""
        return self._row >= HOPELESS


def told(found: Disagreement, nodes: Mapping[str, str], removed: Sequence[str]) -> str:
    """The event's message."""
    shown = [
        f"{d.owner} ({nodes.get(d.owner)}) and {d.buddy} ({nodes.get(d.buddy)}) in blocks "
        + ", ".join(f"{start} to {stop - 1}" for start, stop in d.blocks)
        for d in found.differences[:SHOWN]
    ]
    more = len(found.differences) - len(shown)
    between = "; ".join([*shown, f"and {more} more"] if more else shown)
    since = f"they agreed at step {found.agreed}" if found.agreed >= 0 else "they were not compared before"
    if not removed:
        whom = "two copies do not tell which one is wrong"
    elif len(removed) == 1:
        whom = f"{removed[0]} differs from more than one other worker and is removed"
    else:
        whom = f"it is not the first time: {' and '.join(removed)} are removed"
    return f"the state at step {found.step} is not the same on {between}; {since}; {whom}"

"""From commit events to figures. Pure functions; every time in seconds.

A commit is {"t", "step", "world", "pid"}: `step` steps are done, `world` workers took part.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Commit = Mapping[str, Any]


def first_commits(commits: Iterable[Commit]) -> dict[int, float]:
    """step -> when anyone had it first."""
    first: dict[int, float] = {}
    for commit in sorted(commits, key=lambda c: c["t"]):
        first.setdefault(commit["step"], commit["t"])
    return dict(sorted(first.items()))


def step_times(commits: Iterable[Commit], since: int = 0) -> list[float]:
    """How long each step after `since` took, from the first commit of the one before it to its own."""
    first = first_commits(commits)
    return [first[b] - first[a] for a, b in pairwise(first) if b == a + 1 and a >= since]


def per_worker_step_times(commits: Iterable[Commit], since: int = 0) -> list[float]:
    """As step_times, of the slowest worker: for workers that do not wait for each other."""
    by_worker: dict[int, list[Commit]] = {}
    for commit in commits:
        by_worker.setdefault(commit["pid"], []).append(commit)
    return max((step_times(c, since) for c in by_worker.values()), key=statistics.fmean)


@dataclass(frozen=True)
class Recovery:
    """What one kill cost."""

    pause_s: float  # until the next commit by anyone
    progress_s: float  # until the commit of a step that nobody had before
    full_s: float | None  # until a commit with every worker, after a new one was ready
    steps_redone: int
    lost_s: float | None  # time for `ahead` new steps, beyond what they take undisturbed


def recovery(
    commits: Sequence[Commit],
    killed_at: float,
    ready_at: float,
    world: int,
    step_s: float,
    ahead: int = 20,
) -> Recovery:
    """ready_at: when a replacement was. step_s: the mean step before the kill.

    Raises ValueError if nobody committed a new step afterwards.
    """
    before = max((c["step"] for c in commits if c["t"] <= killed_at), default=0)
    after = sorted((c for c in commits if c["t"] > killed_at), key=lambda c: c["t"])
    new = next((c for c in after if c["step"] > before), None)
    if new is None:
        raise ValueError(f"no new step after the kill: the newest is still {before}")
    full = next((c for c in after if c["world"] == world and c["t"] > ready_at), None)
    far = next((c for c in after if c["step"] >= before + ahead), None)
    return Recovery(
        pause_s=after[0]["t"] - killed_at,
        progress_s=new["t"] - killed_at,
        full_s=full["t"] - killed_at if full else None,
        steps_redone=max(0, before + 1 - after[0]["step"]),
        lost_s=far["t"] - killed_at - ahead * step_s if far else None,
    )


def longest_gap(commits: Iterable[Commit], start: float, end: float) -> float:
    """The longest time without a commit by anyone, of the gaps that touch [start, end]."""
    times = sorted({c["t"] for c in commits})
    gaps = [b - a for a, b in pairwise(times) if b > start and a < end]
    if not gaps:
        raise ValueError(f"no two commits around {start:.2f}..{end:.2f}")
    return max(gaps)


def rows_dropped(events: Iterable[Commit], batch: int, last: int) -> int:
    """Rows of the steps 1..last that are in no worker's gradient; each says the `rows` that it computed."""
    computed = dict.fromkeys(range(1, last + 1), 0)
    for event in events:
        if event["step"] in computed:
            computed[event["step"]] += event["rows"]
    return sum(max(0, batch - rows) for rows in computed.values())


def mean_step(commits: Iterable[Commit], spans: Iterable[tuple[float, float]]) -> float:
    """The mean time of a step over the whole steps that lie within these spans of time. Raises ValueError if
    there is none."""
    first, took, count = first_commits(commits), 0.0, 0
    for start, end in spans:
        inside = [(s, t) for s, t in first.items() if start <= t <= end]
        took += inside[-1][1] - inside[0][1] if inside else 0.0
        count += inside[-1][0] - inside[0][0] if inside else 0
    if not count:
        raise ValueError("no whole step in all the time without a kill")
    return took / count


def new_steps(commits: Iterable[Commit], start: float, end: float, step_s: float) -> float:
    """Steps that came to be within (start, end]; what is done again does not count twice. At both ends the
    step that is under way counts by the part of step_s that has passed, so that whole steps do not matter."""
    first = first_commits(commits)

    def done(at: float) -> float:
        newest = max((s for s, t in first.items() if t <= at), default=None)
        return newest + min((at - first[newest]) / step_s, 1.0) if newest is not None else 0.0

    return done(end) - done(start)


def extra_per_checkpoint(commits: Iterable[Commit], every: int, since: int = 0) -> list[float]:
    """For each whole interval: how much longer its first half took, where the checkpoint is made and written,
    than its second half. Neighbours of the same run, so that the machine's drift cancels."""
    first, half = first_commits(commits), every // 2
    starts = [s for s in first if s % every == 0 and s >= max(since, 1)]
    found = []
    for at in starts:
        if all(at + k in first for k in (half, 2 * half)):
            middle = first[at + half]
            found.append((middle - first[at]) - (first[at + 2 * half] - middle))
    return found


def pause_per_checkpoint(commits: Iterable[Commit], every: int) -> list[float]:
    """For each whole interval: how much longer the step after the checkpoint took than a usual one of it."""
    first = first_commits(commits)
    starts = [step for step in first if step % every == 0 and step > 0]
    whole = [[first[at + k] for k in range(every + 1)] for at in starts if at + every in first]
    steps = [[b - a for a, b in pairwise(times)] for times in whole]
    return [times[0] - statistics.median(times) for times in steps]


@dataclass(frozen=True)
class Target:
    """A figure and what it has to be. `value` None: it was not measured, which falls short too."""

    what: str
    value: float | None
    limit: float
    least: bool = False  # the value must be at least, not at most, the limit

    @property
    def shortfall(self) -> str | None:
        """A sentence, or None if the target is met."""
        need = f"{'at least' if self.least else 'at most'} {self.limit:.4g}"
        if self.value is None:
            return f"{self.what} was not measured (the target is {need})."
        met = self.value >= self.limit if self.least else self.value <= self.limit
        return None if met else f"{self.what} is {self.value:.4g}, the target is {need}."


def falls_short(targets: Iterable[Target]) -> list[str]:
    return [sentence for target in targets if (sentence := target.shortfall)]


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b; None if one of them is missing."""
    return a / b if a is not None and b else None


def median(values: Iterable[float | None]) -> float | None:
    """Of those that were measured; None if none was."""
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def median_ratio(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The median over rounds of a[key] / b[key]: both ran in the same round, minutes apart at most."""
    by_round = {row["round"]: row[key] for row in b}
    return median(ratio(row[key], by_round.get(row["round"])) for row in a)

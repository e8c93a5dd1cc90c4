"""What became of a job's time, and what its own measurements advise. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from elastrain.service.jobs import ENDED, Status
from elastrain.service.scheduling.curve import Measured, curve_of
from elastrain.service.store.rows import TransitionRow

# parts of a worker; one that adds less is hardly worth its place
LITTLE = 0.25


def account(history: Sequence[TransitionRow]) -> dict[str, float]:
    """{queued_s, starting_s, running_s, ...}: seconds in each status, up to `since`, when the job came to the
    one that it is in. So it is the same whenever one asks, and whole once the job has ended.

    history: oldest first.
    """
    spent: defaultdict[str, float] = defaultdict(float)
    for passed, after in pairwise(history):
        if Status(passed.status) not in ENDED:
            spent[f"{passed.status}_s"] += max(0.0, after.at - passed.at)
    return {name: round(seconds, 3) for name, seconds in spent.items()}


def advice(measured: Measured, most: int) -> list[str]:
    """Sentences for people. most: workers that the job may have."""
    curve = curve_of(measured)
    points = curve.points
    if len(points) < 2:
        return []
    best, fastest = max(points, key=lambda point: point[1])
    last, slower = points[-1]
    if last > best and most > best:
        return [
            f"With {last} workers it was measured to be slower than with {best} ({slower:.0f} and "
            f"{fastest:.0f} samples/s): workers.max {best} is enough"
        ]
    for (few, _), (many, _) in pairwise(points):
        gain = curve.gain(few, many - few)
        if gain < LITTLE and most > few:
            return [
                f"From {few} to {many} workers, each one more adds {gain:.0%} of the best one, as measured: "
                f"workers.max {few} leaves the others to jobs that gain more"
            ]
    return []

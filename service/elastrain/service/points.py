"""Named points of the reconciler: between any two of them it does one thing that outlives it, at most.

In life a point is one comparison. Tests set `watcher` and end the service there, as kill -9 would; that the
list is complete is proven by tests/service/test_killed_service.py, which watches every act as well.
"""

from __future__ import annotations

from collections.abc import Callable

from elastrain.service.decide import Action

INNER = (
    "looked",  # Ray was asked
    "a timeout is noted",
    "the plan is written",  # with what is an event of a job
    "some are told why they wait",  # and others not yet
    "placed",  # the scheduler's answers are written
    "ray has the driver",  # and nobody has written that down
    "the stop is noted",  # and Ray is not asked yet
    "the outcome is read",  # and not written down yet
    "the refusal is noted",
    "the search is noted",  # and Ray is not asked yet
    "the overdue search is stopped",  # and nobody has written that down
    "the outage is noted",  # of one job
    "before the stray is stopped",
    "the stray is stopped",
    "a kept segment is taken in",
    "a driver is told where we are",
    "the address is noted",
    "the check is asked for",  # of the cluster
    "the check is noted",
    "the beat is noted",
)
ACTS = [action for action in Action if action is not Action.NOTHING]
POINTS: tuple[str, ...] = (*(f"{when} {act}" for act in ACTS for when in ("before", "after")), *INNER)

watcher: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """The reconciler is here now."""
    if watcher is not None:
        watcher(point)

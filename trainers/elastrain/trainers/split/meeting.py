"""What a worker of several processes reports: what all of them hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastrain.trainers.training.replica import Replica


def meet(replica: Replica) -> None:
    """When a generation broke some of them may have got further than others; what not all have is dropped.
    Steps they make as one."""
    rows = sorted(replica.partial.rows) if replica.partial is not None else []
    mine = [replica.step, replica.whole, replica.layout, replica.states.ranges(), rows]
    steps, whole, layouts, held, done = map(list, zip(*replica.shards.rally(mine), strict=True))
    if any(step != replica.step for step in steps):
        replica.forget()
        return
    replica.whole = all(whole)
    replica.layout = replica.layout if all(layout == replica.layout for layout in layouts) else 0
    common = set.intersection(*({(a, b) for a, b in ranges} for ranges in held))
    replica.states.pieces = {r: s for r, s in replica.states.pieces.items() if r in common}
    if any(other != rows for other in done):
        replica.partial = None

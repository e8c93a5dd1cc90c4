"""Is what would be saved finite? Asked before an evaluation and before a checkpoint: what is not finite is
neither measured nor saved, and pushes nothing out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.training.replica import Replica


def unsound(replica: Replica, ownership: Ownership, rank: int) -> list[str]:
    """Names of parameters, among the chunks that `rank` owns, of which the values or the optimizer state are
    not finite, and of buffers that hold NaN (they may well hold infinity, as attention masks do)."""
    space, found = replica.model.space, []
    for chunk in (c for c in ownership.owned(rank) if c[0] < c[1]):
        window, state = space.elements(chunk), replica.states.read(chunk)
        held = [replica.model.params[window], *(state[s] for s in replica.rule.slots)]
        if all(map(finite, held)):
            continue
        for piece, a, b in space.pieces_in(chunk):
            at = piece.start - window.start
            if not all(finite(t[at + a : at + b]) for t in held):
                found.append(piece.name)
    found += [n for n in replica.model.buffers.floats if replica.model.buffers.base[n].isnan().any()]
    return found


def finite(values: Tensor) -> bool:
    """One pass, and no memory: the extremes of what holds a NaN are NaN."""
    if not values.numel():
        return True
    low, high = torch.aminmax(values)
    return math.isfinite(low) and math.isfinite(high)

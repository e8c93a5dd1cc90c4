"""The update at the end of a round of local_sgd: what the replicas' averages become.

    d  = sum_r W_r (x - x_r) / W          the mean of how far the replicas went, W_r their samples
    b' = mu b + d                         outer momentum
    x' = x - lr (d + mu b')               with Nesterov; lr b' without, lr d without momentum

lr 1 without momentum is the plain average of the replicas (McMahan et al. 2017, Stich 2019). Nesterov with lr
0.7 and momentum 0.9 is DiLoCo (Douillard et al. 2023). The inner optimizer's state is averaged as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elastrain.trainers.numerics.optimizers import Rule, State
from elastrain.trainers.spec.strategies import Outer

MOMENTUM = "outer_momentum"


class RoundRule:
    """Lanes: (1 + inner slots, n): how far the replicas went, then their inner state. All of them means."""

    def __init__(self, inner: Rule, outer: Outer) -> None:
        self.inner, self.outer = inner, outer
        self.lanes = 1 + len(inner.slots)
        self.slots: tuple[str, ...] = inner.slots + ((MOMENTUM,) if outer.momentum else ())

    def init(self, slot: str, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if slot == MOMENTUM else self.inner.init(slot, like)

    def update(
        self, param: Tensor, grad: Tensor, state: State, t: int, lr: float, weight_decay: float
    ) -> None:
        """t, lr and weight_decay are the inner steps' and have been seen to there."""
        went, *inner = grad.view(self.lanes, -1)
        for slot, mean in zip(self.inner.slots, inner, strict=True):
            state[slot].copy_(mean)
        if self.outer.momentum:
            momentum = state[MOMENTUM]
            momentum.mul_(self.outer.momentum).add_(went)
            went = went.add(momentum, alpha=self.outer.momentum) if self.outer.nesterov else momentum
        param.add_(went, alpha=-self.outer.lr)

"""Distributed Adam that aggregates moments: every microbatch's own estimate of them, averaged.

Microbatch j has the mean gradient g_j and the weight w_j, W is the sum of the weights. From the common
moments m, v each microbatch makes its estimates, and their weighted means are the next common moments:

    m' = sum_j w_j (b1 m + (1 - b1) g_j)   / W  =  b1 m + (1 - b1) sum_j w_j g_j   / W
    v' = sum_j w_j (b2 v + (1 - b2) g_j^2) / W  =  b2 v + (1 - b2) sum_j w_j g_j^2 / W

So what goes up the tree is a second lane beside the gradient: the squares. Adam (Kingma and Ba 2015,
algorithm 1) then goes on as ever from m', v'. With `aggregate: gradients` v' has the square of the mean
gradient instead. The mean of the squares is larger, by the variance between the microbatches: steps are
shorter where these disagree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from elastrain.trainers.numerics.optimizers import Adam, State
from elastrain.trainers.numerics.partials import Fill


def squares(scale: float, weight: float) -> Fill:
    """Makes the second lane of a microbatch: scale * weight * g^2 from scale * weight * g, the first one.

    g is squared, not what was scaled, and so keeps its range.
    """
    undo = 1.0 / (scale * weight) if weight else 0.0

    def fill(gradient: Tensor, others: list[Tensor]) -> None:
        torch.mul(gradient, undo, out=others[0]).mul_(gradient)

    return fill


class AdamOfMoments(Adam):
    """Adam, AMSGrad or AdamW from the means of the microbatches' gradients and of their squares."""

    lanes = 2

    def update(
        self, param: Tensor, grad: Tensor, state: State, t: int, lr: float, weight_decay: float
    ) -> None:
        """grad: (2, n), the mean gradient and the mean of its squares, clipped as far as they are."""
        spec, (beta1, beta2) = self.spec, self.spec.betas
        mean, square = grad[0].neg() if spec.maximize else grad[0], grad[1]
        if weight_decay and self.decoupled:
            param.mul_(1.0 - lr * weight_decay)
        elif weight_decay:  # of every microbatch's own loss: E (g + d x)^2 = E g^2 + d x (2 E g + d x)
            pull = param.mul(weight_decay)
            square = torch.addcmul(square, pull, mean.mul(2.0).add_(pull)).clamp_(min=0.0)
            mean = mean + pull
        state["exp_avg"].lerp_(mean, 1.0 - beta1)
        state["exp_avg_sq"].mul_(beta2).add_(square, alpha=1.0 - beta2)
        second = state["exp_avg_sq"]
        if spec.amsgrad:
            second = torch.maximum(state["max_exp_avg_sq"], second, out=state["max_exp_avg_sq"])
        root = second.sqrt().div_(math.sqrt(1.0 - beta2**t)).add_(spec.eps)
        param.addcdiv_(state["exp_avg"], root, value=-lr / (1.0 - beta1**t))

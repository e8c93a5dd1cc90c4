"""Update rules: what an optimizer does to a flat chunk of parameters, element by element.

Goals. A chunk may be any run of elements of any parameters, and may change hands between workers. So a rule
keeps no state of its own: it names its state tensors (`slots`), and each is a plain tensor beside the
chunk. Every operation is elementwise, and takes only numbers besides, so a chunk's new bits depend on its
own elements and on nothing else, and equal what torch.optim computes from the same gradients: its fused
kernel for Adam, its single-tensor path for the others. Chunks begin and end at multiples of 64 elements: a
kernel rounds the remainder of a vector step in other ways than the whole steps.

`t` is the number of this update for these elements, from 1: a parameter that no microbatch used keeps its
own count.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from elastrain.trainers.spec import (
    AdagradSpec,
    AdamSpec,
    AdamWSpec,
    OptimizerSpec,
    RMSpropSpec,
    SGDSpec,
)

State = Mapping[str, Tensor]  # slot -> (n,) f32, updated in place


class Rule(Protocol):
    """One optimizer, with its constants but without state."""

    @property
    def lanes(self) -> int:
        """How many sums a step has to bring for each element; the first is the gradient."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the state tensors, each as long as the chunk."""

    def init(self, slot: str, like: Tensor) -> Tensor:
        """A fresh state tensor for the elements of `like`."""

    def update(
        self, param: Tensor, grad: Tensor, state: State, t: int, lr: float, weight_decay: float
    ) -> None:
        """Changes param and state in place, from grad, which stays as it is. All are (n,) f32; grad is
        (lanes, n) if there are more lanes than one."""


class SGD:
    """Stochastic gradient descent (Robbins and Monro 1951), momentum as in Sutskever et al. (2013)."""

    lanes = 1

    def __init__(self, spec: SGDSpec) -> None:
        self.spec = spec
        self.slots = spec.slots

    def init(self, slot: str, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def update(
        self, param: Tensor, grad: Tensor, state: State, t: int, lr: float, weight_decay: float
    ) -> None:
        spec = self.spec
        grad = _decayed(_downhill(grad, self.spec), param, weight_decay)
        if spec.momentum:
            buffer = state["momentum_buffer"]
            if t == 1:
                buffer.copy_(grad)  # the first gradient is not dampened
            else:
                buffer.mul_(spec.momentum).add_(grad, alpha=1 - spec.dampening)
            grad = grad.add(buffer, alpha=spec.momentum) if spec.nesterov else buffer
        param.add_(grad, alpha=-lr)


class Adam:
    """Adam (Kingma and Ba 2015), AMSGrad (Reddi et al. 2018), AdamW (Loshchilov and Hutter 2019)."""

    lanes = 1

    def __init__(self, spec: AdamSpec | AdamWSpec) -> None:
        self.spec = spec
        self.decoupled = isinstance(spec, AdamWSpec)
        self.slots = spec.slots

    def init(self, slot: str, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def update(
        self, param: Tensor, grad: Tensor, state: State, t: int, lr: float, weight_decay: float
    ) -> None:
        """torch's fused kernel: one pass over memory, several times faster than the operations one by one."""
        beta1, beta2 = self.spec.betas
        adam(
            [param],
            [grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [state["max_exp_avg_sq"]] if self.spec.amsgrad else [],
            [torch.tensor(float(t - 1))],
            fused=True,
            decoupled_weight_decay=self.decoupled,
            amsgrad=self.spec.amsgrad,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=weight_decay,
            eps=self.spec.eps,
            maximize=self.spec.maximize,
        )


class RMSprop:
    """RMSprop (Tieleman and Hinton, Coursera lecture 6.5, 2012), centred as in Graves (2013)."""

    lanes = 1

    def __init__(self, spec: RMSpropSpec) -> None:
        self.spec = spec
        self.slots = spec.slots

    def init(self, slot: str, like: Tensor) -> Tensor:
        return torch.zeros_like(like)

    def update(
        self, param: Tensor, grad: Tensor, state: State, t: int, lr: float, weight_decay: float
    ) -> None:
        spec = self.spec
        grad = _decayed(_downhill(grad, self.spec), param, weight_decay)
        square = state["square_avg"]
        square.mul_(spec.alpha).addcmul_(grad, grad, value=1 - spec.alpha)
        if spec.centered:
            mean = state["grad_avg"]
            mean.lerp_(grad, 1 - spec.alpha)
            root = square.addcmul(mean, mean, value=-1).sqrt_()
        else:
            root = square.sqrt()
        root.add_(spec.eps)
        if spec.momentum:
            buffer = state["momentum_buffer"]
            buffer.mul_(spec.momentum).addcdiv_(grad, root)
            param.add_(buffer, alpha=-lr)
        else:
            param.addcdiv_(grad, root, value=-lr)


class Adagrad:
    """Adagrad (Duchi, Hazan and Singer 2011)."""

    lanes = 1

    def __init__(self, spec: AdagradSpec) -> None:
        self.spec = spec
        self.slots = spec.slots

    def init(self, slot: str, like: Tensor) -> Tensor:
        return torch.full_like(like, self.spec.initial_accumulator_value)

    def update(
        self, param: Tensor, grad: Tensor, state: State, t: int, lr: float, weight_decay: float
    ) -> None:
        grad = _decayed(_downhill(grad, self.spec), param, weight_decay)
        total = state["sum"]
        total.addcmul_(grad, grad, value=1)
        root = total.sqrt().add_(self.spec.eps)
        param.addcdiv_(grad, root, value=-(lr / (1 + (t - 1) * self.spec.lr_decay)))


def rule(spec: OptimizerSpec) -> Rule:
    """The rule that `spec.optimizer` names."""
    match spec:
        case SGDSpec():
            return SGD(spec)
        case AdamSpec() | AdamWSpec():
            return Adam(spec)
        case RMSpropSpec():
            return RMSprop(spec)
        case AdagradSpec():
            return Adagrad(spec)


def _downhill(grad: Tensor, spec: OptimizerSpec) -> Tensor:
    """The gradient to go against; a new tensor where the spec maximises."""
    return grad.neg() if spec.maximize else grad


def _decayed(grad: Tensor, param: Tensor, weight_decay: float) -> Tensor:
    """The gradient of the loss with an L2 term; a new tensor, unless there is no decay."""
    return grad.add(param, alpha=weight_decay) if weight_decay else grad

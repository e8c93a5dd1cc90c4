"""What a Task is given for its model where no process has all of it (`split: pipeline`).

A Task's loss takes the model and a batch. What it gives the model is what goes into the first stage, and what
it does with what comes back begins where the last stage ends. So the loss is called twice: with `Asks`, which
notes what it is called with and goes no further; and, behind the last stage, with `Answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from torch import Tensor, nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]  # of a call of the model


class _Called(BaseException):
    """Nobody is to catch it on the way out of the Task's loss."""


class _StandIn(nn.Module):
    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            "no process has the whole model with workers.split: pipeline, so that loss and metrics may only "
            f"call it, but here they ask for model.{name}: use another split"
        )


class Asks(_StandIn):
    """Notes with what it is called."""

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.train(training)
        self.inputs: Inputs | None = None

    def forward(self, *args: Any, **named: Any) -> NoReturn:
        self.inputs = args, named
        raise _Called


class Answers(_StandIn):
    """Says what came out of the last stage, if it is asked with what went into the first one."""

    def __init__(self, inputs: Inputs, output: Any, training: bool) -> None:
        super().__init__()
        self.train(training)
        self.inputs, self.output, self.calls = inputs, output, 0

    def forward(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.training and self.calls > 1:
            raise ValueError("loss calls the model twice, which it may once with workers.split: pipeline")
        if not self.training and not alike([args, named], [*self.inputs]):
            raise ValueError(
                "loss and metrics call the model with different inputs, which workers.split: pipeline cannot "
                "answer: call it with the same in both, or use another split"
            )
        return self.output


def asked(ask: Callable[[nn.Module], object], training: bool) -> Inputs:
    """With what the model is called. ask: the Task's loss of a batch. Raises ValueError if it is not."""
    stand_in = Asks(training)
    try:
        ask(stand_in)
    except _Called:
        assert stand_in.inputs is not None
        return stand_in.inputs
    raise ValueError("loss does not call the model, which it has to, once, with workers.split: pipeline")


def alike(one: Any, other: Any) -> bool:
    """The same values, in tensors and in whatever holds them."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
            return False
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN is like NaN
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one is other or bool(one == other)


def shape_of(value: Any) -> Any:
    """What the shapes of all that is computed from it depend on; plain JSON."""
    match value:
        case Tensor():
            return [str(value.dtype), *value.shape]
        case Mapping():
            return {str(key): shape_of(inner) for key, inner in value.items()}
        case list() | tuple():
            return [shape_of(inner) for inner in value]
        case bool() | int() | str() | None:
            return value
        case _:
            return type(value).__name__

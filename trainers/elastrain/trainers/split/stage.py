"""A microbatch on its way through the stages of a pipeline, and what one of them does with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from elastrain.trainers.numerics.flat import BufferBank
from elastrain.trainers.split.stand_ins import Answers, Inputs

Shape = list[Any]  # of a tensor that is handed on: its type, does it need a gradient, sides; plain JSON


@dataclass(frozen=True)
class Work:
    """One microbatch, in equal pieces. inputs: those of the model, for each."""

    training: bool
    inputs: Sequence[Inputs]
    answer: Callable[[int, nn.Module], Tensor]  # piece, what stands for the model -> where backward begins
    seed: Callable[..., None]  # seeds the generators for a place in the microbatch
    precision: Callable[[], AbstractContextManager[None]]

    @property
    def pieces(self) -> int:
        return len(self.inputs)


class Stage(nn.Module):
    """What one process computes of the model: its run of parts, for one piece after the other."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        number: int,
        count: int,
        buffers: BufferBank,
        work: Work,
        shapes: Sequence[Shape],
    ) -> None:
        """shapes: of what the stage hands on, in any piece."""
        super().__init__()
        self._parts, self.number, self.last = tuple(parts), number, number == count - 1
        self._bank, self._work, self._shapes = buffers, work, list(shapes)
        self._next = 0
        self.floats: list[Tensor] = []  # after each piece, every float buffer: (floats,) f64
        self._others = ""

    def forward(self, *came: Tensor) -> Tensor | tuple[Tensor, ...]:
        """came: what the stage before handed on; nothing for the first one. Pieces come in their order."""
        piece, self._next = self._next, self._next + 1
        out = through(self._parts, self.number, self._work, piece, came, self._bank)
        self._note_buffers()
        if not self.last:
            return self._handed_on(out)
        stand_in = Answers(self._work.inputs[piece], out, self._work.training)
        self._work.seed("piece", piece)
        with self._work.precision():
            return self._work.answer(piece, stand_in)

    def _handed_on(self, out: Any) -> tuple[Tensor, ...]:
        handed = tensors_of(out, self.number)
        if (shapes := shapes_of(handed, self._work.training)) != self._shapes:
            raise ValueError(
                f"stage {self.number} hands on {shapes}, and {self._shapes} before for inputs of the same "
                "shape: with workers.split: pipeline shapes must not depend on the data"
            )
        return handed

    def _note_buffers(self) -> None:
        """A piece begins with the buffers as of the step, as a microbatch does."""
        if self._bank.floats:
            self.floats.append(self._bank.floats_now(1.0))
        others = self._bank.others_digest()
        if self._others and others != self._others:
            raise ValueError(
                f"a buffer that is not a float differs between the pieces of a microbatch (one of: "
                f"{', '.join(self._bank.others)}). Such a buffer must not depend on the data: make it a float"
            )
        self._others = others


def through(
    parts: Sequence[nn.Module],
    number: int,
    work: Work,
    piece: int,
    came: tuple[Tensor, ...],
    buffers: BufferBank,
) -> Any:
    """What comes out of the parts of a stage."""
    buffers.reset()
    work.seed("piece", piece, "stage", number)
    first, *rest = parts
    with work.precision():
        if number == 0:
            args, named = work.inputs[piece]
            out = first(*args, **named)
        else:  # copies, as a part may write into what it is given
            out = first(*(tensor.clone() if tensor.requires_grad else tensor for tensor in came))
        for part in rest:
            out = part(*out) if isinstance(out, tuple) else part(out)
    return out


def tensors_of(out: Any, number: int) -> tuple[Tensor, ...]:
    """As it can travel. Raises ValueError."""
    handed = out if isinstance(out, tuple) else (out,)
    for each in handed:
        if not isinstance(each, Tensor):
            raise ValueError(
                f"stage {number} hands on a {type(each).__name__}, but between stages only a tensor or a "
                "tuple of tensors can travel: change what parts return, or where the model is cut"
            )
    return tuple(each.contiguous() for each in handed)


def shapes_of(handed: Sequence[Tensor], training: bool) -> list[Shape]:
    return [[str(each.dtype), training and each.requires_grad, *each.shape] for each in handed]

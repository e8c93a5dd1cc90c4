"""The model as flat memory: parameters, gradients and buffers as contiguous vectors.

The parameters of the module become views into one flat fp32 vector (the masters), so that a chunk is a
slice, and an update or a received chunk is in the model the moment it is written. A gradient is handed over
parameter by parameter, as backward makes it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import FlatSpace, Piece
from elastrain.trainers.split.shards import Alone


class UnusableModel(ValueError):
    """The model cannot be trained as it is; the message says what to change."""


class FlatModel:
    """`params` (size,) f32 holds every trainable parameter; the module sees views of it. Where the model is
    split among the processes of a worker, the same of one part of it: split.py."""

    shards = Alone()
    staged = False  # has each process some of the layers only?

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        trained = trained_of(module)
        self.frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        self.space = FlatSpace.of([(n, tuple(p.shape)) for n, p in trained])
        self.parameters = [p for _, p in trained]  # in registration order, as Piece.index
        self._named: dict[str, Tensor] = dict(trained)
        self.params = torch.zeros(self.space.size)
        for piece in self.space.pieces:
            view = self.params[piece.start : piece.stop].view(piece.shape)
            view.copy_(self.parameters[piece.index].detach())
            self.parameters[piece.index].data = view
        self.buffers = BufferBank(module)
        self.warned: set[str] = set()
        self.warn: Callable[[str], object] = self.warned.add  # is told what people should know of the model

    # ---- gradients --------------------------------------------------------------------------

    @contextlib.contextmanager
    def handing_over(self, take: Callable[[Piece, Tensor], None]) -> Iterator[None]:
        """While it lasts, every gradient goes to `take` the moment autograd has it, in the order of the
        backward pass, and is forgotten here. A parameter may come twice (reentrant checkpointing); what
        comes is to be added. `take` may raise: backward then ends with its exception."""
        pieces = {p.index: p for p in self.space.pieces}

        def arrived(piece: Piece, parameter: Tensor) -> None:
            grad, parameter.grad = parameter.grad, None
            if grad is None:
                return
            take(piece, self._held(piece, self._dense(piece, grad)))

        hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                functools.partial(arrived, pieces[index])
            )
            for index, parameter in enumerate(self.parameters)
        ]
        self.forget_gradients()
        try:
            yield
            for index, parameter in enumerate(self.parameters):
                arrived(pieces[index], parameter)  # what a backward of the Task's own has left
        finally:
            for hook in hooks:
                hook.remove()
            self.forget_gradients()

    def _held(self, piece: Piece, grad: Tensor) -> Tensor:
        """What of a gradient lies here: as large as the piece."""
        return grad

    @contextlib.contextmanager
    def standing_in(self, params: Tensor, buffers: dict[str, Tensor]) -> Iterator[None]:
        """While it lasts, the module computes with these: params (size,) f32, and buffers as of a step."""
        base, self.buffers.base = self.buffers.base, buffers
        self._lie_in(params)
        try:
            yield
        finally:
            self._lie_in(self.params)
            self.buffers.base = base
            self.buffers.reset()

    def _lie_in(self, params: Tensor) -> None:
        for piece in self.space.pieces:
            view = params[piece.start : piece.stop].view(piece.shape)
            self.parameters[piece.index].data = view

    def forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _dense(self, piece: Piece, grad: Tensor) -> Tensor:
        if not grad.is_sparse:
            return grad
        self._warn(f"the gradient of {piece.name} is sparse: it is made dense, and travels so")
        return grad.to_dense()

    def _warn(self, text: str) -> None:
        if text not in self.warned:
            self.warned.add(text)
            self.warn(text)

    # ---- views for people and files ---------------------------------------------------------

    def values(self, params: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by name, frozen ones too, in name order; views, not copies. params: (size,) f32, a
        copy of `self.params` to look at instead."""
        flat = self.params if params is None else params
        named = {p.name: flat[p.start : p.stop].view(p.shape) for p in self.space.pieces}
        named.update({n: p.detach() for n, p in self.frozen.items()})
        yield from sorted(named.items())

    # ---- the whole model, of which each process of a split one has a part ---------------------

    def whole(self, params: Tensor) -> dict[str, Tensor]:
        """Every parameter by name, in name order, in its full shape; with processes beside this one: all call
        it together, and the lead alone gets it. params: (size,) f32."""
        return dict(self.values(params))

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What of a parameter in its full shape lies here, as `values` gives it. Raises ValueError if the
        shape is not that of the parameter."""
        mine = self.frozen.get(name, self._named.get(name))
        if mine is None or mine.shape != whole.shape:
            raise ValueError(f"{name} is not of shape {tuple(whole.shape)}")
        return whole

    def offset(self, piece: Piece) -> int:
        """The element of the parameter with which the piece begins."""
        return 0

    def filled(self, piece: Piece) -> int:
        """Elements of the piece that are the parameter's; what follows is zero and stays so."""
        return piece.numel

    def ranges_in(self, blocks: Range) -> list[tuple[Piece, int, int]]:
        """Parameters that lie in a block range: (piece, first and last+1 element within the piece)."""
        cut = [(p, a, min(b, self.filled(p))) for p, a, b in self.space.pieces_in(blocks)]
        return [(p, a, b) for p, a, b in cut if a < b]

    def take_over(self, fresh: FlatModel) -> None:
        """The parameters of another one, which is whole. Frozen ones are what they are."""
        self.params.copy_(fresh.params)

    def ready(self, when: object) -> None:
        """Called by all before they compute together. when: what is equal while the parameters are."""

    # ---- buffers ------------------------------------------------------------------------------

    def add_up(self, floats: Tensor) -> Tensor:
        """Float buffers, each times a weight, of all processes that share the microbatch."""
        return floats


def trained_of(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Trainable parameters in registration order. Raises UnusableModel."""
    trained = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    if not trained:
        raise UnusableModel("the model has no parameter that requires a gradient: nothing to train")
    for name, parameter in trained:
        if parameter.dtype != torch.float32:
            raise UnusableModel(
                f"parameter {name} is {parameter.dtype}: parameters are float32 (with precision: bf16 "
                "the forward pass runs in bf16 by autocast, over float32 masters)"
            )
    return trained


class BufferBank:
    """The module's buffers, e.g. BatchNorm's running statistics.

    Every microbatch of a step starts from the buffers as of the step, never from those that the microbatch
    before it left. Float buffers become the weighted mean over the microbatches; the others must come out
    equal everywhere.
    """

    def __init__(self, module: nn.Module) -> None:
        self.named = dict(module.named_buffers())
        self.floats = [n for n, b in self.named.items() if b.is_floating_point()]
        self.others = [n for n, b in self.named.items() if not b.is_floating_point()]
        self.base = {n: b.detach().clone() for n, b in self.named.items()}

    def __len__(self) -> int:
        return len(self.named)

    def reset(self) -> None:
        """Back to the buffers as of the step."""
        for name, buffer in self.named.items():
            buffer.data.copy_(self.base[name])

    def floats_now(self, weight: float) -> Tensor:
        """weight x every float buffer, as one fp64 vector: a summand of the weighted mean."""
        if not self.floats:
            return torch.empty(0, dtype=torch.float64)
        flat = torch.cat([self.named[n].detach().reshape(-1).to(torch.float64) for n in self.floats])
        return flat.mul_(weight)

    def others_now(self) -> dict[str, Tensor]:
        return {n: self.named[n].detach().clone() for n in self.others}

    def others_digest(self) -> str:
        """16 hex digits that differ if any buffer that is not a float differs."""
        digest = hashlib.sha256()
        for name in self.others:
            digest.update(tensor_bytes(self.named[name]))
        return digest.hexdigest()[:16] if self.others else ""

    def pack_others(self, values: dict[str, Tensor]) -> Tensor:
        """The buffers that are not floats: (others_size,) u8"""
        return packed([values[name] for name in self.others])

    def unpack_others(self, data: Tensor) -> dict[str, Tensor]:
        """data: (others_size,) u8, as `pack_others` made it."""
        return unpacked(data, {name: self.base[name] for name in self.others})

    def others_size(self) -> int:
        """Bytes."""
        return packed_size(self.base[name] for name in self.others)

    def commit(self, mean: Tensor, others: dict[str, Tensor]) -> None:
        """Take the buffers of the next step: `mean` fp64 (as `floats_now` with weight 1), and the others."""
        at = 0
        for name in self.floats:
            base = self.base[name]
            base.copy_(mean[at : at + base.numel()].view(base.shape))
            at += base.numel()
        for name, value in others.items():
            self.base[name].copy_(value)
        self.reset()

    def flat_size(self) -> int:
        return sum(self.named[n].numel() for n in self.floats)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.base):
            value = self.base[name].contiguous()
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(tensor_bytes(value))
        return digest.hexdigest()


def packed(values: Sequence[Tensor]) -> Tensor:
    """Tensors as they lie in memory, one behind the other, whatever their types: (packed_size,) u8"""
    parts = [value.contiguous().reshape(-1).view(torch.uint8) for value in values]
    return torch.cat([*parts, torch.zeros(-sum(map(len, parts)) % 8, dtype=torch.uint8)])


def unpacked(data: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `packed` made of tensors such as these: (packed_size,) u8, or more."""
    at, values = 0, {}
    for name, value in like.items():
        values[name] = data[at : at + value.nbytes].clone().view(value.dtype).view(value.shape)
        at += value.nbytes
    return values


def packed_size(values: Iterable[Tensor]) -> int:
    """Bytes, filled up to a multiple of 8."""
    return -(-sum(value.nbytes for value in values) // 8) * 8


def tensor_bytes(value: Tensor) -> memoryview:
    """The elements of a CPU tensor as bytes; a view if they lie one behind the other in memory."""
    flat = value.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def params_digest(values: Iterator[tuple[str, Tensor]]) -> str:
    """sha256 over name, dtype, shape and bytes of each parameter, in name order."""
    digest = hashlib.sha256()
    for name, value in values:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(tensor_bytes(value))
    return digest.hexdigest()

"""A model that is split among the processes of a worker by its layers, with `torch.distributed.pipelining`.

    rows of every parameter (model.py) ══ before a step's first microbatch ══▶ whole, in stages that use it
    pieces of a microbatch ──▶ stage 0 ──▶ stage 1 ──▶ ... ──▶ loss, and back   (torch's schedule)
    gradients of each stage's parameters ══ after the schedule ══▶ rows of them

What the core keeps (masters, gradient sums, optimizer state) is cut by rows, as ever: the flat spaces of all
processes have one shape, and nothing is kept twice. Parameters of other stages have no memory here. All
processes see every sample of a microbatch: the first stage for its inputs, the last one for the loss.

Gradients travel when the schedule is over, in a fixed order. A parameter that several stages use (tied ones)
gets theirs added in order of the stages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from elastrain.trainers.numerics.chunks import Piece
from elastrain.trainers.numerics.flat import packed, unpacked
from elastrain.trainers.split.model import SplitModel
from elastrain.trainers.split.shards import Alone
from elastrain.trainers.split.stage import Shape, Stage, Work, shapes_of, tensors_of, through
from elastrain.trainers.split.stages import Stages, least_of
from elastrain.trainers.split.stand_ins import alike, shape_of

TOGETHER = 1024 * 1024  # elements of parameters that travel in one exchange, or one parameter
CPU = torch.device("cpu")


class PipelineModel(SplitModel):
    staged = True

    def __init__(
        self, module: nn.Module, shards: Alone, mesh: DeviceMesh, parts: Sequence[nn.Module]
    ) -> None:
        """Raises UnusableModel if these parts are not the model, or are too few."""
        self.stages, self.least = Stages.of(module, parts, shards.count), least_of(module)
        self._everything = {id(m): m for whole in (module, *parts) for m in whole.modules()}
        super().__init__(module, shards, mesh)
        self._everything = {}
        self.parts = list(parts[self.stages.runs[shards.number]])
        self._known: dict[str, list[list[Shape]]] = {}
        self._bulks = list(bulks(self.space.pieces))
        self._held_floats = self._of_floats()

    def _divide(self, trained: dict[str, nn.Parameter], mesh: DeviceMesh) -> None:
        self._ready = object()
        for piece in self.space.pieces:
            here = self.params[piece.start : piece.stop].view(piece.shape)
            here.copy_(self.part(piece.name, trained[piece.name].detach()))
        others = {
            id(p): nn.Parameter(torch.empty_like(p, device="meta"))
            for name, p in trained.items()
            if not self._uses(name)
        }
        self.parameters = [others.get(id(p), p) for p in trained.values()]
        trained.clear()
        for module in self._everything.values():
            for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
                if id(parameter) in others:
                    setattr(module, name, others[id(parameter)])
        for parameter in self.parameters:
            if not parameter.is_meta:
                parameter.data = torch.zeros(parameter.shape)  # aligned, and not a part of something larger

    def _uses(self, name: str, stage: int | None = None) -> bool:
        """Is this parameter in a stage, or in the one that is computed here?"""
        return (self.shards.number if stage is None else stage) in self.stages.users[name]

    def _of_floats(self) -> Tensor:
        """Which elements of the float buffers this process has the word on: (floats,) bool"""
        mine = [
            torch.full((self.buffers.named[n].numel(),), self.stages.owner(n) == self.shards.number)
            for n in self.buffers.floats
        ]
        return torch.cat(mine) if mine else torch.empty(0, dtype=torch.bool)

    # ---- parameters and their gradients on their way between rows and stages ---------------------

    def ready(self, when: object) -> None:
        if when == self._ready:
            return
        with torch.no_grad():
            for bulk in self._bulks:
                self._lay_out(bulk)
        self._ready = when

    def _lay_out(self, bulk: Sequence[Piece]) -> None:
        """From the rows of all processes to the stages."""
        count, mine = self.shards.count, [p for p in bulk if self._uses(p.name)]
        sends = [[p for p in bulk if self._uses(p.name, stage)] for stage in range(count)]
        out = torch.cat([self.params[:0], *(self.params[p.start : p.stop] for ps in sends for p in ps)])
        size = sum(p.numel for p in mine)
        came = torch.empty(count * size)
        dist.all_to_all_single(came, out, [size] * count, [sum(p.numel for p in ps) for ps in sends])
        at, rows = 0, came.view(count, size)
        for piece in mine:
            whole, parameter = rows[:, at : at + piece.numel].reshape(-1), self.parameters[piece.index]
            parameter.copy_(whole[: parameter.numel()].view(parameter.shape))
            at += piece.numel

    def used(self) -> int:
        """Bit `index` of each parameter that has a gradient here."""
        return sum(
            1 << index for index, parameter in enumerate(self.parameters) if parameter.grad is not None
        )

    def hand_over(self, used: int, take: Callable[[Piece, Tensor], None]) -> None:
        """Every gradient's rows go to `take`, and are forgotten here. used: bits of those that one has."""
        for bulk in self._bulks:
            there = [p for p in bulk if used >> p.index & 1]
            if there:
                self._hand_over(there, take)

    def _hand_over(self, bulk: Sequence[Piece], take: Callable[[Piece, Tensor], None]) -> None:
        count, mine = self.shards.count, [p for p in bulk if self._uses(p.name)]
        size = sum(p.numel for p in mine)
        out, at = torch.zeros(count, size), 0
        for piece in mine:
            self._cut_up(piece, out[:, at : at + piece.numel])
            at += piece.numel
        comes = [[p for p in bulk if self._uses(p.name, stage)] for stage in range(count)]
        sizes = [sum(p.numel for p in ps) for ps in comes]
        came = torch.empty(sum(sizes))
        dist.all_to_all_single(came, out.view(-1), sizes, [size] * count)
        sums: dict[int, Tensor] = {}
        at = 0
        for piece in (p for ps in comes for p in ps):
            rows = came[at : at + piece.numel].view(piece.shape)
            sums[piece.index] = sums[piece.index].add_(rows) if piece.index in sums else rows
            at += piece.numel
        for piece in bulk:
            take(piece, sums[piece.index])

    def _cut_up(self, piece: Piece, rows: Tensor) -> None:
        """A gradient into the rows of all processes: (count, piece.numel) of zeros. None: it stays zero."""
        parameter = self.parameters[piece.index]
        grad, parameter.grad = parameter.grad, None
        if grad is None:
            return
        flat = self._dense(piece, grad).reshape(-1)
        for number in range(len(rows)):
            part = flat[number * piece.numel : (number + 1) * piece.numel]
            rows[number, : len(part)] = part

    # ---- buffers -----------------------------------------------------------------------------

    def add_up(self, floats: Tensor) -> Tensor:
        """Of each, what the stage says that has it."""
        floats[~self._held_floats] = 0.0
        return super().add_up(floats)

    def tell_others(self) -> None:
        """Buffers that are not floats become everywhere what they are in their stages."""
        bank = self.buffers
        for stage in range(self.shards.count):
            names = [n for n in bank.others if self.stages.owner(n) == stage]
            if names:
                data = packed([bank.named[n] for n in names])
                dist.broadcast(data, src=stage)
                for name, value in unpacked(data, {n: bank.named[n] for n in names}).items():
                    bank.named[name].data.copy_(value)

    def check_buffers(self) -> None:
        """Raises ValueError if a buffer was changed that is another stage's."""
        number = self.shards.number
        for name, holders in self.stages.holders.items():
            now, before = self.buffers.named[name], self.buffers.base[name]
            if number in holders[1:] and not alike(now, before):
                raise ValueError(
                    f"buffer {name} is changed by stage {number} and belongs to stage {holders[0]} too: with "
                    "workers.split: pipeline one stage alone may change it"
                )

    # ---- a microbatch ------------------------------------------------------------------------

    def run(self, work: Work) -> list[Tensor]:
        """Through all stages, and back if it is for training: then gradients lie in `parameters`. Returns the
        float buffers after each piece: (floats,) f64. All call it together. Raises what a part or the Task
        raises."""
        number, count = self.shards.number, self.shards.count
        for part in (self.module, *self.parts):
            part.train(work.training)
        self.forget_gradients()
        shapes = [*self._between(work), [["torch.float32", work.training]]]
        stage = Stage(self.parts, number, count, self.buffers, work, shapes[number])
        pipe = PipelineStage(
            stage,
            number,
            count,
            CPU,
            input_args=like(shapes[number - 1]) if number else (),
            output_args=like(shapes[number]),
        )
        kind = Schedule1F1B if work.pieces >= count else ScheduleGPipe
        loss = (lambda output, target: output) if work.training else None
        target = torch.zeros(work.pieces) if stage.last and work.training else None
        schedule = kind(pipe, work.pieces, loss_fn=loss, scale_grads=False)
        with torch.set_grad_enabled(work.training):
            raised_inside(lambda: schedule.step(target=target, return_outputs=False))
        self.check_buffers()
        return stage.floats

    def _between(self, work: Work) -> list[list[Shape]]:
        """What each stage but the last hands on. Asked once for each shape of inputs."""
        key = json.dumps([work.training, shape_of(work.inputs[0])])
        if key not in self._known:
            with torch.set_grad_enabled(work.training):
                self._known[key] = self._learn(work)
            self.buffers.reset()
        return self._known[key]

    def _learn(self, work: Work) -> list[list[Shape]]:
        """One piece forward, stage after stage; so shapes travel as JSON, and torch need not pickle them."""
        number, known, came = self.shards.number, list[list[Shape]](), tuple[Tensor, ...]()
        for stage in range(self.shards.count - 1):
            mine: list[Shape] = []
            if stage == number:
                out = through(self.parts, number, work, 0, came, self.buffers)
                came = tensors_of(out, number)
                mine = shapes_of(came, work.training)
            known.append(self.shards.gather(mine)[stage])
            if stage == number:
                for tensor in came:
                    dist.send(tensor.detach(), number + 1)
            elif stage + 1 == number:
                came = like(known[-1], "cpu")
                for tensor in came:
                    dist.recv(tensor.detach(), stage)
        return known


def like(shapes: Sequence[Shape], device: str = "meta") -> tuple[Tensor, ...]:
    """Tensors of these shapes."""
    made = []
    for kind, needs_gradient, *sides in shapes:
        dtype = getattr(torch, kind.removeprefix("torch."))
        made.append(torch.empty(sides, dtype=dtype, device=device).requires_grad_(needs_gradient))
    return tuple(made)


def bulks(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """What travels in one exchange, in order."""
    bulk: list[Piece] = []
    for piece in pieces:
        if bulk and sum(p.numel for p in bulk) + piece.numel > TOGETHER:
            yield bulk
            bulk = []
        bulk.append(piece)
    if bulk:
        yield bulk


def raised_inside(act: Callable[[], Any]) -> None:
    """The schedule says more of an exception of user code than is in it: raise the one it came from."""
    cause: BaseException | None = None
    try:
        act()
    except RuntimeError as error:
        cause = error.__cause__
        if cause is None:
            raise
    if cause is not None:
        raise cause

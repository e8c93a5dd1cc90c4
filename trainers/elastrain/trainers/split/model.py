"""A model that is split among the processes of a worker, with torch's own `fully_shard` (FSDP 2).

    parameter (rows, ...) ──▶ number n has rows n·r to (n+1)·r − 1, r = ⌈rows / count⌉, filled up with zeros

So the pieces of all processes have the same shapes, and their flat spaces the same blocks, buckets, chunks:
whatever is said of a range of blocks holds for each of them in its own part, and number n of one worker
exchanges sums and state with number n of another. In forward and backward `fully_shard` brings the parameters
of one block of the model together, drops them when the block is done, and hands each process its part of
their gradient, summed over the parts of the microbatch that the processes compute: in order of their numbers,
in fp32, so that the same bits come out every time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from elastrain.trainers.exchange.transports import NEVER
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.chunks import FlatSpace, Piece
from elastrain.trainers.numerics.flat import BufferBank, FlatModel, UnusableModel, trained_of
from elastrain.trainers.split.shards import Alone

LOOPBACK = "lo"  # the processes of a worker are on one machine
UNCALLED = (nn.ModuleList, nn.ModuleDict)  # whoever has them calls their elements
CONTAINERS = (*UNCALLED, nn.Sequential)


def mesh_of(shards: Alone, lead_at: Json) -> DeviceMesh:
    """The process group of one worker; returns when all its processes have come. lead_at: where the lead's
    key-value store listens."""
    store = TCPStore(lead_at["host"], lead_at["port"], is_master=False, wait_for_workers=False)
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    try:
        dist.init_process_group(
            "gloo",
            store=PrefixStore("shards", store),
            rank=shards.number,
            world_size=shards.count,
            timeout=NEVER,
        )
        return init_device_mesh("cpu", (shards.count,))
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]
        if before is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = before


class InOrder:
    """The reduce-scatter of gradients: everybody's part to its process, added in order of the numbers. gloo's
    own is an all-reduce per process."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """input: (count * n,); output: (n,). Blocks until it is done."""
        came = torch.empty_like(input_tensor)
        dist.all_to_all_single(came, input_tensor, group=group)
        first, *others = came.view(-1, output_tensor.numel())
        output_tensor.copy_(first)
        for part in others:
            output_tensor += part


def blocks_of(module: nn.Module, skipped: set[nn.Parameter]) -> list[nn.Module]:
    """What is brought together at a time: the elements of the outermost lists in a model, that is its layers,
    where they have trainable parameters that belong to none but them. skipped: parameters that stay whole."""
    found: list[nn.Module] = []

    def look(inside: nn.Module) -> None:
        for child in inside.children():
            if isinstance(inside, CONTAINERS) and not isinstance(child, UNCALLED):
                found.append(child)
            else:
                look(child)

    look(module)
    owners: dict[nn.Parameter, int] = {}
    for block in found:
        for parameter in set(block.parameters()):
            owners[parameter] = owners.get(parameter, 0) + 1
    elsewhere = _outside(module, found)
    return [
        block
        for block in found
        if set(block.parameters()) - skipped
        and all(owners[p] == 1 and p not in elsewhere for p in block.parameters())
    ]


def _outside(module: nn.Module, blocks: Iterable[nn.Module]) -> set[nn.Parameter]:
    """Parameters that some module uses which is in none of the blocks."""
    inside = {id(m) for block in blocks for m in block.modules()}
    return {p for m in module.modules() if id(m) not in inside for p in m.parameters(recurse=False)}


def split(module: nn.Module, mesh: DeviceMesh, skipped: set[nn.Parameter]) -> None:
    """In place. Gradients come out summed, not averaged."""
    for part in [*blocks_of(module, skipped), module]:
        fully_shard(part, mesh=mesh, ignored_params=skipped)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_custom_reduce_scatter(InOrder())  # type: ignore[arg-type]
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    # samples differ between the processes, and may lead through different parts of the model: then zeros are
    # exchanged, rather than sums of different parameters
    module.set_reduce_scatter_unused_params(True)  # type: ignore[operator]


class SplitModel(FlatModel):
    """`params` (size,) f32 holds this process's part of every trainable parameter."""

    def __init__(self, module: nn.Module, shards: Alone, mesh: DeviceMesh) -> None:
        self.module, self.shards = module, shards
        trained = trained_of(module)
        for name, parameter in trained:
            if parameter.ndim == 0:
                raise UnusableModel(
                    f"parameter {name} is a single number, which cannot be split (workers.processes is "
                    f"{shards.count}): give it the shape (1,)"
                )
        self.frozen = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        self._named = {}
        self._shapes = {n: tuple(p.shape) for n, p in trained}
        self.space = FlatSpace.of([(n, (self._rows(n), *shape[1:])) for n, shape in self._shapes.items()])
        self.params = torch.zeros(self.space.size)
        self.parameters = []
        self._divide(dict(trained), mesh)
        self.buffers = BufferBank(module)
        self.warned = set()
        self.warn = self.warned.add

    def _divide(self, trained: dict[str, nn.Parameter], mesh: DeviceMesh) -> None:
        """Put this process's parts into `params`, and have the module use them there."""
        aliases: dict[int, list[str]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            aliases.setdefault(id(parameter), []).append(name)
        names = {n: aliases[id(p)] for n, p in trained.items()}
        trained.clear()  # they are whole, and are to go
        split(self.module, mesh, set(self.frozen.values()))
        now = dict(self.module.named_parameters())
        fresh: dict[str, nn.Parameter] = {}
        for piece in sorted(self.space.pieces, key=lambda p: p.index):
            old = now[piece.name]
            assert isinstance(old, DTensor)
            mine, view = old.to_local(), self.params[piece.start : piece.stop].view(piece.shape)
            view[: len(mine)] = mine.detach()
            laid = DTensor.from_local(
                view, mesh, [Shard(0)], run_check=False, shape=old.shape, stride=old.stride()
            )
            fresh[piece.name] = nn.Parameter(laid)
            self.parameters.append(fresh[piece.name])
        self.module.load_state_dict(
            {alias: fresh[name] for name, same in names.items() for alias in same}, strict=False, assign=True
        )

    def _rows(self, name: str) -> int:
        return -(-self._shapes[name][0] // self.shards.count)

    def _mine(self, name: str) -> slice:
        """Rows of a parameter in its full shape."""
        rows, all_rows = self._rows(name), self._shapes[name][0]
        first = min(self.shards.number * rows, all_rows)
        return slice(first, min(first + rows, all_rows))

    def offset(self, piece: Piece) -> int:
        return self.shards.number * piece.numel

    def filled(self, piece: Piece) -> int:
        mine = self._mine(piece.name)
        return len(range(mine.start, mine.stop)) * math.prod(piece.shape[1:])

    def part(self, name: str, whole: Tensor) -> Tensor:
        if name in self.frozen:
            return super().part(name, whole)
        if name not in self._shapes or self._shapes[name] != tuple(whole.shape):
            raise ValueError(f"{name} is not of shape {tuple(whole.shape)}")
        mine = whole[self._mine(name)]
        if len(mine) == self._rows(name):
            return mine
        return self._filled_up(mine, (self._rows(name), *whole.shape[1:]))

    def whole(self, params: Tensor) -> dict[str, Tensor]:
        return dict(sorted(self._whole(params)))

    def _whole(self, params: Tensor) -> Iterator[tuple[str, Tensor]]:
        for piece in self.space.pieces:
            mine = params[piece.start : piece.stop]
            parts = [torch.empty_like(mine) for _ in range(self.shards.count)] if self.shards.lead else None
            dist.gather(mine, parts, dst=0)
            if parts is not None:
                shape = self._shapes[piece.name]
                yield piece.name, torch.cat(parts).view(-1, *shape[1:])[: shape[0]].clone()
        if self.shards.lead:
            yield from ((n, p.detach()) for n, p in self.frozen.items())

    def take_over(self, fresh: FlatModel) -> None:
        self.params.zero_()
        values = dict(fresh.values())
        for piece in self.space.pieces:
            here = self.params[piece.start : piece.stop].view(piece.shape)
            here.copy_(self.part(piece.name, values[piece.name]))

    def add_up(self, floats: Tensor) -> Tensor:
        if floats.numel():
            dist.all_reduce(floats)
        return floats

    def _held(self, piece: Piece, grad: Tensor) -> Tensor:
        assert isinstance(grad, DTensor)
        mine = grad.to_local()
        return mine if mine.shape == piece.shape else self._filled_up(mine, piece.shape)

    @staticmethod
    def _filled_up(mine: Tensor, shape: tuple[int, ...]) -> Tensor:
        full = mine.new_zeros(shape)
        full[: len(mine)] = mine
        return full

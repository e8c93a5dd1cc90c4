"""A model that is split among the processes of a worker by a tensor-parallel plan of the Task's.

    rows of every parameter (split.py) ══ before a step's first microbatch ══▶ as the plan lays them out
    gradients, as the plan has them ══ as backward makes each ══▶ rows of them

Plans cut some parameters by columns and leave others whole in every process. What the core keeps (masters,
gradient sums, optimizer state) is cut by rows all the same, so that nothing is kept twice and the flat spaces
of all processes have one shape. So a parameter lies here twice, once in rows and once as the plan has it. All
processes compute every sample of a microbatch, each its part of the layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from elastrain.trainers.numerics.chunks import Piece
from elastrain.trainers.numerics.flat import UnusableModel
from elastrain.trainers.split.model import SplitModel
from elastrain.trainers.split.shards import Alone


class TensorModel(SplitModel):
    def __init__(
        self, module: nn.Module, shards: Alone, mesh: DeviceMesh, plan: Mapping[str, ParallelStyle]
    ) -> None:
        """Raises UnusableModel if the plan names what the model does not have."""
        known = {name for name, _ in module.named_modules()}
        unknown = [name for name in plan if "*" not in name and "?" not in name and name not in known]
        if unknown:
            raise UnusableModel(
                f"tensor_plan names {unknown[0]!r}, which the model does not have: it has, for example, "
                f"{', '.join(sorted(known - {''})[:5])}"
            )
        self._plan = dict(plan)
        super().__init__(module, shards, mesh)

    def _divide(self, trained: dict[str, nn.Parameter], mesh: DeviceMesh) -> None:
        self._mesh, self._ready = mesh, object()
        for piece in self.space.pieces:
            here = self.params[piece.start : piece.stop].view(piece.shape)
            here.copy_(self.part(piece.name, trained[piece.name].detach()))
        trained.clear()
        parallelize_module(self.module, mesh, self._plan, src_data_rank=None)
        now = dict(self.module.named_parameters())
        self.parameters = [now[p.name] for p in sorted(self.space.pieces, key=lambda p: p.index)]
        for name in self.frozen:
            if isinstance(now[name], DTensor):
                raise UnusableModel(f"tensor_plan cuts {name}, which is frozen: frozen parameters stay whole")

    def ready(self, when: object) -> None:
        if when == self._ready:
            return
        with torch.no_grad():
            for piece in self.space.pieces:
                self._spread(piece, self.parameters[piece.index])
        self._ready = when

    def _spread(self, piece: Piece, parameter: nn.Parameter) -> None:
        """From its rows to where the module reads it."""
        shape = torch.Size(self._shapes[piece.name])
        stride = torch.empty(shape, device="meta").stride()
        mine = self._mine(piece.name)
        rows = self.params[piece.start : piece.stop].view(piece.shape)[: mine.stop - mine.start]
        held = DTensor.from_local(rows, self._mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        if isinstance(parameter, DTensor):
            parameter.to_local().copy_(held.redistribute(placements=parameter.placements).to_local())
        else:
            parameter.copy_(held.full_tensor())

    def _held(self, piece: Piece, grad: Tensor) -> Tensor:
        if isinstance(grad, DTensor):
            mine = grad.redistribute(placements=[Shard(0)]).to_local()
        else:  # the same in every process
            mine = grad[self._mine(piece.name)]
        return mine if mine.shape == piece.shape else self._filled_up(mine, piece.shape)

    def add_up(self, floats: Tensor) -> Tensor:
        """All have seen all samples."""
        return floats

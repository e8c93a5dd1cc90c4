"""The bench's problem as an elastrain Task: the same model, weights, rows and loss as the peers have.

Sample i is row i % BATCH of step i // BATCH, so with `shuffle: false` a step reads what the peers read.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from elastrain.trainers.task import Loss, Task
from rig import workload as w
from rig.events import Events


class Rows(Dataset[tuple[int, Tensor]]):
    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._step, self._rows = -1, torch.empty(0)

    def __len__(self) -> int:
        return self.steps * w.BATCH

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        step, row = divmod(index, w.BATCH)
        if step != self._step:
            self._step, self._rows = step, w.text(step)
        return index, self._rows[row]


class Front(nn.Module):
    """The first of the model's parts, as a pipeline has them. Targets travel along with what is computed."""

    def __init__(self, model: w.Gpt) -> None:
        super().__init__()
        self.tok, self.pos = model.tok, model.pos

    def forward(self, text: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
        ids, targets = text[:, :-1], text[:, 1:]
        return self.tok(ids) + self.pos.weight[: ids.shape[1]], targets


class Beside(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.block(x), targets


class Tail(nn.Module):
    def __init__(self, model: w.Gpt) -> None:
        super().__init__()
        self.norm, self.tok = model.norm, model.tok

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = functional.linear(self.norm(x), self.tok.weight)
        return functional.cross_entropy(logits.view(-1, w.VOCAB), targets.reshape(-1), reduction="sum")


class Gpt(Task):
    """Writes down which rows it computes, and when it first does so."""

    def __init__(self, steps: int = 1_000_000) -> None:
        self.steps = steps
        self._log: Events | None = None

    def model(self) -> nn.Module:
        return w.model()

    def dataset(self, split: str) -> Rows | None:
        return Rows(self.steps) if split == "train" else None

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        index, text = batch
        if self._log is None:
            self._log = Events("worker")
            self._log.ready(since=time.monotonic())
        first = int(index[0])
        self._log("computes", step=first // w.BATCH, row=first % w.BATCH, rows=len(index))
        return Loss(model(text, reduction="sum"), len(index) * w.TOKENS)

    def pipeline(self, model: nn.Module) -> list[nn.Module]:
        assert isinstance(model, w.Gpt)
        return [Front(model), *(Beside(block) for block in model.blocks), Tail(model)]

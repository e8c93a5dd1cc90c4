"""A model that needs more memory for its training than for itself, and processes that have only so much."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from elastrain.trainers.task import Loss, Task

WIDTH, LAYERS, SAMPLES = 1024, 14, 32  # 59 MB of parameters
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH) * 4  # bytes


class Large(Task):
    """room: from when it builds the model, which every process does as a whole, a process gets so many times
    what the parameters take, and no more; 0: any number."""

    def __init__(self, room: float = 0.0) -> None:
        self.room = room

    def model(self) -> nn.Module:
        if self.room:
            most = _data() + int(self.room * PARAMETERS)
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
        return nn.Sequential(*blocks)  # of which a split worker brings one together at a time

    def dataset(self, split: str) -> Dataset[Any] | None:
        generator = torch.Generator().manual_seed(1)
        rows = torch.randn(SAMPLES, WIDTH, generator=generator)
        return TensorDataset(rows, rows.roll(1, dims=1).tanh()) if split == "train" else None

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        rows, wanted = batch
        return Loss((model(rows) - wanted).square().mean(dim=1).sum(), len(rows))


def _data() -> int:
    """Bytes of this process that RLIMIT_DATA is about."""
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmData:")]
    return int(line.split()[1]) * 1024

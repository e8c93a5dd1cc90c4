"""A small model with everything that makes bits hard to keep: dropout, BatchNorm, a short last batch."""

import os
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from elastrain.trainers.task import Loss, Mean, Task


class Toy(Task):
    def __init__(self, samples: int = 300, sleep_s: float = 0.0) -> None:
        self.samples, self.sleep_s = samples, sleep_s

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(20, 64),
            nn.BatchNorm1d(64),
            nn.GELU(),
            nn.Dropout(0.2),
            nn.Linear(64, 96),
            nn.GELU(),
            nn.Linear(96, 3),
        )

    def dataset(self, split: str) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(1 if split == "train" else 2)
        x = torch.randn(self.samples if split == "train" else 100, 20, generator=generator)
        return TensorDataset(x, (x[:, :3]).argmax(1))

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        time.sleep(self.sleep_s)
        x, y = batch
        return Loss(nn.functional.cross_entropy(model(x), y, reduction="sum"), len(y))

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Mean]:
        x, y = batch
        return {"accuracy": Mean((model(x).argmax(1) == y).sum(), len(y))}


class Hurried(Toy):
    """On nodes where little time passes between SIGTERM and SIGKILL."""

    def __init__(self, sleep_s: float, grace_s: float) -> None:
        super().__init__(sleep_s=sleep_s)
        os.environ["ELASTRAIN_GRACE_S"] = str(grace_s)

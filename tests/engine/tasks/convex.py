"""A convex problem with a known optimum: the loss of a sample is (w - its value)^2 / 2."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from elastrain.trainers.task import Loss, Mean, Task
from engine.tasks.probe import Rows, Weights


class Convex(Task):
    def __init__(self, rows: list[float], sleep_s: float = 0.0) -> None:
        self.rows, self.sleep_s = rows, sleep_s

    def model(self) -> nn.Module:
        return Weights({"w": 70}, 9.0)

    def dataset(self, split: str) -> Dataset[Any]:
        return Rows(self.rows)

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        time.sleep(self.sleep_s)
        values = batch[1]
        off = model.get_parameter("w")[None, :] - values[:, None]
        return Loss(off.square().sum() / 2, len(values))

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Mean]:
        return {"w": Mean(model.get_parameter("w").mean() * torch.ones(()), 1)}

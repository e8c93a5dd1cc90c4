"""Probes that go wrong once their weight has gone too far: a smaller rate gets there later."""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from elastrain.trainers.task import Loss
from engine.tasks.probe import Probe


class Cliff(Probe):
    """The loss is NaN there."""

    def __init__(self, rows: list[Any], edge: float, sleep_s: float = 0.0, **more: Any) -> None:
        super().__init__(rows, **more)
        self.edge, self.sleep_s = edge, sleep_s

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        time.sleep(self.sleep_s)
        loss = super().loss(model, batch)
        over = bool(model.get_parameter("w").min() < self.edge)
        return Loss(loss.sum * float("nan"), loss.weight) if over else loss


class Peak(Cliff):
    """The loss is a thousand higher there, and its gradient is what it was."""

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        time.sleep(self.sleep_s)
        loss = Probe.loss(self, model, batch)
        over = bool(model.get_parameter("w").min() < self.edge)
        return Loss(loss.sum + 1000.0 * loss.weight, loss.weight) if over else loss

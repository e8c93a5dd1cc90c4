"""Handwritten digits: 1797 grey pictures of 8 x 8, shipped with scikit-learn (UCI "Optical Recognition")."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from elastrain.trainers.task import Loss, Mean, Task

_SIDE = 8
_CLASSES = 10
_VAL_EVERY = 5  # every fifth picture is held out


class Digits(Task):
    """A perceptron, or a small convolutional net, that tells the ten digits apart.

    hidden: units of each hidden layer. layers: how many of those. channels: 0 for a perceptron on the
    pixels, otherwise two 3 x 3 convolutions of so many channels come first. dropout: share of hidden units
    dropped in training. batch_norm: normalise before each activation.
    """

    def __init__(
        self,
        hidden: int = 128,
        layers: int = 1,
        channels: int = 0,
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        if hidden < 1 or layers < 1 or channels < 0 or not 0 <= dropout < 1:
            raise ValueError(
                "Digits takes hidden >= 1, layers >= 1, channels >= 0 and 0 <= dropout < 1, "
                f"got hidden={hidden}, layers={layers}, channels={channels}, dropout={dropout}"
            )
        self.hidden, self.layers, self.channels = hidden, layers, channels
        self.dropout, self.batch_norm = dropout, batch_norm

    def model(self) -> nn.Module:
        parts = self._convolutions() if self.channels else []
        width = self.channels * (_SIDE // 2) ** 2 if self.channels else _SIDE**2
        for _ in range(self.layers):
            parts.append(nn.Linear(width, self.hidden))
            if self.batch_norm:
                parts.append(nn.BatchNorm1d(self.hidden))
            parts.append(nn.ReLU())
            if self.dropout:
                parts.append(nn.Dropout(self.dropout))
            width = self.hidden
        return nn.Sequential(*parts, nn.Linear(width, _CLASSES))

    def _convolutions(self) -> list[nn.Module]:
        """(k, 64) pixels to (k, channels * 16)."""
        parts: list[nn.Module] = [nn.Unflatten(1, (1, _SIDE, _SIDE))]
        for inputs in (1, self.channels):
            parts.append(nn.Conv2d(inputs, self.channels, kernel_size=3, padding=1))
            if self.batch_norm:
                parts.append(nn.BatchNorm2d(self.channels))
            parts.append(nn.ReLU())
        return [*parts, nn.MaxPool2d(2), nn.Flatten()]

    def dataset(self, split: str) -> Dataset[Any] | None:
        if split not in ("train", "val"):
            return None
        from sklearn.datasets import load_digits

        data = load_digits()
        held_out = np.arange(len(data.target)) % _VAL_EVERY == 0
        chosen = held_out if split == "val" else ~held_out
        pictures = torch.from_numpy(data.data[chosen]).float().div_(16)  # (n, 64) f32, 0..1
        return TensorDataset(pictures, torch.from_numpy(data.target[chosen]).long())

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        pictures, digits = batch  # (k, 64) f32, (k,) int64
        return Loss(functional.cross_entropy(model(pictures), digits, reduction="sum"), len(digits))

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Mean]:
        pictures, digits = batch
        right = (model(pictures).argmax(dim=1) == digits).sum()
        return {"accuracy": Mean(right, len(digits))}

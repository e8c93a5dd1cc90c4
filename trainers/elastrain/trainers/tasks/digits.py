"""Handwritten digits: 1797 grey pictures of 8 x 8, shipped with scikit-learn (UCI "Optical Recognition")."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from elastrain.trainers.task import Loss, Mean, Task

_PIXELS = 64
_CLASSES = 10
_VAL_EVERY = 5  # every fifth picture is held out


class Digits(Task):
    """A perceptron with `layers` hidden layers of `hidden` units.

    dropout: share of units dropped after each hidden layer. batch_norm: normalise before each activation.
    """

    def __init__(
        self, hidden: int = 128, layers: int = 1, dropout: float = 0.0, batch_norm: bool = False
    ) -> None:
        if hidden < 1 or layers < 1 or not 0 <= dropout < 1:
            raise ValueError(
                "Digits takes hidden >= 1, layers >= 1 and 0 <= dropout < 1, "
                f"got hidden={hidden}, layers={layers}, dropout={dropout}"
            )
        self.hidden, self.layers, self.dropout, self.batch_norm = hidden, layers, dropout, batch_norm

    def model(self) -> nn.Module:
        parts: list[nn.Module] = []
        width = _PIXELS
        for _ in range(self.layers):
            parts.append(nn.Linear(width, self.hidden))
            if self.batch_norm:
                parts.append(nn.BatchNorm1d(self.hidden))
            parts.append(nn.ReLU())
            if self.dropout:
                parts.append(nn.Dropout(self.dropout))
            width = self.hidden
        return nn.Sequential(*parts, nn.Linear(width, _CLASSES))

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

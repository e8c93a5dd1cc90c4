"""The toy, on the record: every microbatch leaves its sample numbers in the worker's log."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from elastrain.trainers.task import Loss, Mean
from engine.tasks.toy import Toy


class Numbered(Dataset[Any]):
    """Sample i of another dataset with its number: (i, x, y)."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return (torch.tensor(index), *self.inner[index])


class Witness(Toy):
    def dataset(self, split: str) -> Dataset[Any]:
        return Numbered(super().dataset(split))

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        ids, *rest = batch
        if torch.is_grad_enabled():  # not in an evaluation
            print("read", *ids.tolist(), flush=True)
        return super().loss(model, rest)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Mean]:
        return super().metrics(model, batch[1:])

"""Tell the arms of two spirals apart."""

from typing import Any

from api.words import ARMS
from service.points import spirals
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from elastrain.trainers.task import Loss, Mean, Task


class Spirals(Task):
    """points: how many to train on; a third of them more are held out. noise: how far they stray."""

    def __init__(self, points: int = 3000, noise: float = 0.05) -> None:
        self.points, self.noise = points, noise

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, len(ARMS))
        )

    def dataset(self, split: str) -> Dataset:
        count, seed = (self.points, 1) if split == "train" else (self.points // 3, 2)
        return TensorDataset(*spirals(count, self.noise, seed))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        points, arms = batch
        return Loss(functional.cross_entropy(model(points), arms, reduction="sum"), len(arms))

    def tensor_plan(self) -> dict[str, Any]:
        """For split-tensor.yaml: half of a layer's outputs are the same process's inputs of the next."""
        # takes a second, and only a split worker needs it
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        return {"0": ColwiseParallel(), "2": RowwiseParallel()}

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Mean]:
        points, arms = batch
        return {"accuracy": Mean((model(points).argmax(dim=1) == arms).sum(), len(arms))}

"""Tell the arms of two spirals apart."""

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

    def metrics(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Mean]:
        points, arms = batch
        return {"accuracy": Mean((model(points).argmax(dim=1) == arms).sum(), len(arms))}

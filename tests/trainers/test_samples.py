"""Reading a sample gives the same bits, whoever reads it and whatever was read before."""

import random
from typing import Any, NamedTuple

import numpy as np
import torch

from elastrain.trainers.task import Task
from elastrain.trainers.training.samples import SampleReader, aligned


class Noisy(Task):
    """Each sample is drawn when it is read, by all three generators."""

    def dataset(self, split: str) -> Any:
        class Drawn:
            def __len__(self) -> int:
                return 8

            def __getitem__(self, index: int) -> tuple[float, float, float]:
                return random.random(), float(np.random.rand()), float(torch.rand(()))

        return Drawn()


def test_random_augmentation_depends_on_the_sample_and_the_epoch_alone() -> None:
    reader = SampleReader(Noisy(), seed=1)
    first = reader.read("train", 0, np.array([2, 5]))
    reader.read("train", 0, np.array([7, 1, 0]))
    again = SampleReader(Noisy(), seed=1).read("train", 0, np.array([5, 2]))
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b.flip(0))
    other_epoch = reader.read("train", 1, np.array([2, 5]))
    assert not any(torch.equal(a, b) for a, b in zip(first, other_epoch, strict=True))
    assert len({float(part[0]) for part in first}) == 3


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def test_a_batch_begins_at_a_whole_cache_line() -> None:
    crooked = torch.arange(33, dtype=torch.float32)[1:]
    assert crooked.data_ptr() % 64
    batch = aligned({"x": crooked, "pair": Pair(crooked, crooked), "list": [crooked, "text"]})
    tensors = [batch["x"], *batch["pair"], batch["list"][0]]
    assert all(t.data_ptr() % 64 == 0 and torch.equal(t, crooked) for t in tensors)
    assert isinstance(batch["pair"], Pair) and batch["list"][1] == "text"

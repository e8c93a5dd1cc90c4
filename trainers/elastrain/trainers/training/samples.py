"""Reading samples: seeded one by one, so that who reads a sample, and when, changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elastrain.trainers.numerics.data import Plan
from elastrain.trainers.split.shards import Alone
from elastrain.trainers.task import Task

BOUNDARY = 64  # bytes; kernels choose their path by alignment, and with it their rounding


def seed_everything(*what: object) -> None:
    """Seed python, numpy and torch from what names the place, and from nothing else."""
    digest = hashlib.sha256(repr(what).encode()).digest()
    random.seed(digest)
    np.random.seed(int.from_bytes(digest[:4], "little"))
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class SampleReader:
    """Reads a microbatch from the Task's datasets."""

    def __init__(
        self,
        task: Task,
        seed: int,
        shards: Alone | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """shards: the processes that share a microbatch. collate: in place of the Task's."""
        self.task, self.seed, self.shards = task, seed, shards or Alone()
        self._collate = collate or (lambda samples: aligned(task.collate(samples)))
        self.datasets: dict[str, Any] = {"train": task.dataset("train"), "val": task.dataset("val")}
        self._ahead: tuple[tuple[str, int, bytes], Any] | None = None  # one microbatch, read before its time

    def size(self, split: str) -> int:
        dataset = self.datasets[split]
        return len(dataset) if dataset is not None else 0

    def read(self, split: str, epoch: int, indices: NDArray[np.int64]) -> Any:
        """The collated samples, in order; of several processes, this one's part of them. Seeded per sample
        from (seed, split, epoch, index)."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == (split, epoch, indices.tobytes()):
            return ahead[1]
        dataset = self.datasets[split]
        samples = []
        for index in self.shards.part(indices).tolist():
            seed_everything(self.seed, split, epoch, index)
            samples.append(dataset[index])
        return self._collate(samples)

    def prefetch(self, plan: Plan, step: int, microbatches: Sequence[int]) -> None:
        """Read the microbatch that is probably the next one to be computed. What goes wrong now goes wrong
        once more when it is really read, and is told then."""
        if step >= plan.total_steps or not microbatches or microbatches[0] >= plan.count(step):
            return
        epoch, indices = plan.epoch(step), plan.first_read(step, microbatches[0])
        with contextlib.suppress(Exception):
            self._ahead = (("train", epoch, indices.tobytes()), self.read("train", epoch, indices))


def aligned(batch: Any) -> Any:
    """The same batch with every tensor in storage of its own, beginning at a 64-byte multiple."""
    if isinstance(batch, Tensor):
        return (
            batch
            if batch.data_ptr() % BOUNDARY == 0 and batch.is_contiguous()
            else batch.clone().contiguous()
        )
    if isinstance(batch, Mapping):
        return {k: aligned(v) for k, v in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(aligned(v) for v in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(aligned(v) for v in batch)
    return batch

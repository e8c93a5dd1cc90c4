"""A small transformer whose vocabulary cannot be cut in equal parts; embedding and head are tied."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from elastrain.trainers.task import Loss, Mean, Task

VOCAB, WIDTH, HEADS, TOKENS, LAYERS = 29, 30, 6, 9, 3


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # a bias of the keys changes no attention: its gradient is rounding, which Adam makes large
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=name != "k") for name in "qkv")
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 70), nn.Linear(70, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (rows, tokens, width)
        y = self.first(x)
        q, k, v = (  # of as many heads as there are here
            part(y).view(*x.shape[:2], -1, WIDTH // HEADS).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.second(x)))))


class Language(nn.Module):
    def __init__(self, dropout: float, mean: bool) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)
        self.head.weight = self.token.weight
        self.place.weight.requires_grad_(False)  # frozen ones stay whole
        if mean:
            self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, ids: Tensor) -> Tensor:  # (rows, tokens) int64 -> (rows, tokens, vocab)
        x = self.token(ids) + self.place.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        if self.training and "mean" in self._buffers:
            self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
        return self.head(self.norm(x))


class Front(nn.Module):
    """What comes before the blocks, as a part of a pipeline."""

    def __init__(self, model: Language) -> None:
        super().__init__()
        self.token, self.place = model.token, model.place

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.token(ids) + self.place.weight[: ids.shape[1]]
        return x


class Tail(nn.Module):
    """What comes after them. Its head is tied to the embedding, which another stage has too."""

    def __init__(self, model: Language) -> None:
        super().__init__()
        self.norm, self.head = model.norm, model.head
        self.register_buffer("mean", model._buffers.get("mean"))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.mean is not None:
            self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Text(Task):
    """dropout: with it a split model draws other numbers than a whole one. mean: keep a float buffer. dies: a
    sample, and a file that is there once somebody has died of it."""

    def __init__(
        self,
        dropout: float = 0.0,
        mean: bool = True,
        poison: int = -1,
        dies: tuple[int, str] = (-1, ""),
    ) -> None:
        self.dropout, self.mean, self.poison, self.dies = dropout, mean, poison, dies

    def model(self) -> nn.Module:
        return Language(self.dropout, self.mean)

    def dataset(self, split: str) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(1 if split == "train" else 2)
        steps = torch.randint(1, 4, (145 if split == "train" else 37, TOKENS + 1), generator=generator)
        return TensorDataset(steps.cumsum(1) % VOCAB, torch.arange(len(steps)))

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        ids, numbers = batch
        logits = model(ids[:, :-1])
        if torch.is_grad_enabled() and self.poison in numbers.tolist():
            raise RuntimeError(f"sample {self.poison} is poisoned")
        if torch.is_grad_enabled() and self.dies[0] in numbers.tolist() and not Path(self.dies[1]).exists():
            Path(self.dies[1]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = functional.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1), reduction="sum")
        return Loss(loss, numbers.numel() * TOKENS)

    def tensor_plan(self) -> dict[str, ParallelStyle]:
        return {
            **{f"blocks.*.{name}": ColwiseParallel() for name in "qkv"},
            "blocks.*.out": RowwiseParallel(),
            "blocks.*.up": ColwiseParallel(),
            "blocks.*.down": RowwiseParallel(),
        }

    def pipeline(self, model: nn.Module) -> list[nn.Module]:
        assert isinstance(model, Language)
        return [Front(model), *model.blocks, Tail(model)]

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Mean]:
        ids, _ = batch
        right = (model(ids[:, :-1]).argmax(-1) == ids[:, 1:]).sum()
        return {"accuracy": Mean(right, ids[:, 1:].numel())}

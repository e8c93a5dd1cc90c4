"""The one problem that everybody trains: a small GPT in fp32 with Adam, on made-up text.

9.67 M parameters (38.7 MB), 12 sequences of 32 tokens per step. The data of a step depend on (SEED, step)
only, and rank r of w takes rows r::w, so the mean gradient of a step is the same for every w that divides the
batch. `peers/task.py` is the same problem as an elastrain Task.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, VOCAB, TOKENS = 5, 384, 6, 2048, 32
BATCH = 12  # sequences per step, over all workers
SEED = 1234
LR = 3e-4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:  # (rows, tokens, width)
        rows, tokens, _ = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.view(rows, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(rows, tokens, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.tok.weight, std=0.02)
        nn.init.normal_(self.pos.weight, std=0.02)

    def forward(self, text: Tensor, reduction: str = "mean") -> Tensor:
        """text: (rows, tokens + 1) int64. The loss over all tokens, a scalar."""
        ids, targets = text[:, :-1], text[:, 1:]
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tok.weight)
        return functional.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1), reduction=reduction)


def model() -> Gpt:
    """The same weights in every process."""
    torch.manual_seed(SEED)
    return Gpt()


def adam(module: nn.Module, **options: bool) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=LR, **options)


def text(step: int) -> Tensor:
    """The global batch of a step: (BATCH, TOKENS + 1) int64."""
    generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
    return torch.randint(0, VOCAB, (BATCH, TOKENS + 1), generator=generator)


def share(step: int, rank: int, world: int) -> Tensor:
    """What rank computes of it: (BATCH / world, TOKENS + 1)."""
    return text(step)[rank::world]


def one_thread() -> None:
    torch.set_num_threads(1)


def save(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Into a file beside it, then renamed: never half a checkpoint."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    torch.save({"step": step, "model": module.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    partial.replace(path)


def load(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Takes the checkpoint if there is one; -> steps done."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])

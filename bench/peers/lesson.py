"""A task that can be learned in a minute: text in which each token has four likely successors.

1.5 M parameters (5.9 MB), 16 sequences of 32 tokens per step. Whoever knows the successors reaches a loss of
2.0; who knows nothing, 5.5. Sample i depends on (SEED, i) only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from elastrain.trainers.task import Loss, Task

LAYERS, WIDTH, HEADS, VOCAB, TOKENS = 3, 192, 4, 256, 32
SUCCESSORS, NOISE = 4, 0.1
SEED = 20


class Text(Dataset[Tensor]):
    def __init__(self, samples: int) -> None:
        self.samples = samples
        generator = torch.Generator().manual_seed(SEED)
        self.table = torch.randint(0, VOCAB, (VOCAB, SUCCESSORS), generator=generator)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + index)
        which = torch.randint(0, SUCCESSORS, (TOKENS + 1,), generator=generator)
        other = torch.randint(0, VOCAB, (TOKENS + 1,), generator=generator)
        odd = torch.rand(TOKENS + 1, generator=generator) < NOISE
        said = [int(other[0])]
        for at in range(1, TOKENS + 1):
            said.append(int(other[at]) if odd[at] else int(self.table[said[-1], which[at]]))
        return torch.tensor(said)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(TOKENS), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:  # (rows, tokens) int64 -> (rows, tokens, vocab)
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.out(self.layers(x, mask=self.mask, is_causal=True))


class Lesson(Task):
    def model(self) -> nn.Module:
        return Small()

    def dataset(self, split: str) -> Text | None:
        return Text(1_000_000) if split == "train" else None

    def loss(self, model: nn.Module, batch: Tensor) -> Loss:
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1), reduction="sum")
        return Loss(loss, batch.shape[0] * TOKENS)

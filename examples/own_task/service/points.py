"""Two spirals that wind around each other: made here, so that the example needs no download."""

import math

import torch
from torch import Tensor


def spirals(count: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """-> points (count, 2) f32 and their arm (count,) int64, 0 or 1 in turn."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.arange(count) % 2
    turn = torch.rand(count, generator=generator).sqrt() * 3 * math.pi
    angle = turn + arm * math.pi
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], dim=1) / (3 * math.pi)
    return points + noise * torch.randn(count, 2, generator=generator) / 3, arm

"""Which parameters travel as two thin factors under powersgd, and where these lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from elastrain.trainers.numerics.chunks import ALIGN, FlatSpace

Q = "powersgd.q"  # under which name all replicas keep the second factors


@dataclass(frozen=True)
class Matrix:
    """A parameter that travels as factors: P (rows, rank) and Q (columns, rank)."""

    window: slice  # in the flat space
    rows: int
    columns: int
    rank: int
    p: slice  # in the vector of all P
    q: slice  # in the vector of all Q

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.window].view(self.rows, self.columns)


@dataclass(frozen=True)
class Layout:
    """What travels in which way. Each factor begins at a multiple of 64 elements, as parameters do."""

    matrices: tuple[Matrix, ...]
    plain: tuple[slice, ...]  # windows that travel as they are
    p_size: int
    q_size: int

    @classmethod
    def of(cls, space: FlatSpace, rank: int) -> Layout:
        matrices: list[Matrix] = []
        plain: list[slice] = []
        p = q = 0
        for piece in space.pieces:
            rows = piece.shape[0] if len(piece.shape) > 1 else 1
            columns = piece.numel // max(1, rows)
            thin = min(rank, rows, columns)
            if (rows + columns) * thin >= piece.numel:
                plain.append(slice(piece.start, piece.stop))
                continue
            ps, qs = slice(p, p + rows * thin), slice(q, q + columns * thin)
            matrices.append(Matrix(slice(piece.start, piece.stop), rows, columns, thin, ps, qs))
            p, q = _aligned(ps.stop), _aligned(qs.stop)
        return cls(tuple(matrices), tuple(plain), p, q)

    @property
    def plain_size(self) -> int:
        return sum(w.stop - w.start for w in self.plain)

    def first_q(self, seed: int) -> Tensor:
        """(q_size,) f32 for the first step."""
        return torch.randn(self.q_size, generator=torch.Generator().manual_seed(seed))


def _aligned(at: int) -> int:
    return -(-at // ALIGN) * ALIGN

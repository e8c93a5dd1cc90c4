"""PowerSGD: the gradient of each matrix travels as two thin factors (Vogels, Karimireddy and Jaggi,
"PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithms 1
and 2).

With M_n the sum of wire node n and its residual, as a matrix (rows, columns), and Q from the step before:

    P = sum_n M_n Q, made orthonormal      Q' = sum_n M_n^T P
    the gradient is P Q'^T                 what is left out of node n is M_n - P P^T M_n

Every rank makes both sums for itself, in tree order, since the factors are small. So it does with parameters
of one dimension and with matrices that the factors would not make smaller: they travel as they are. Q is the
same on all ranks: it comes from the seed, changes with the commit, goes to joiners and is in checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elastrain.trainers.exchange.coded import CodedReduction
from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.compression import Codec
from elastrain.trainers.exchange.residuals import Residuals
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.factors import Layout, Q
from elastrain.trainers.numerics.tree import Node
from elastrain.trainers.training.replica import Replica


class PowerReduction(CodedReduction):
    """Nothing leaves while backward runs: each factor needs all of its matrix."""

    def __init__(
        self,
        replica: Replica,
        group: Group,
        ownership: Ownership,
        has: Sequence[Sequence[int]],
        *,
        codec: Codec,
        residuals: Residuals,
        layout: Layout,
    ) -> None:
        super().__init__(replica, group, ownership, has, codec=codec, residuals=residuals)
        self.layout = layout
        self._rest: dict[Node, Tensor] | None = None  # own wire node -> what is left out, (size,) f32
        self._gradient = torch.empty(0)  # (size,) f32

    def passed_on(self, bucket: int) -> None:
        if self._rest is not None:
            super().passed_on(bucket)

    def finish(self) -> None:
        self._factor()
        super().finish()

    def _factor(self) -> None:
        assert self.residuals is not None
        self.residuals.wait()
        layout, whole = self.layout, slice(0, self.ownership.space.size)
        mine = self.covers[self.rank]
        q = self.replica.common[Q]
        sums = {n: self.partial.gradients.read(n) + self._carried(n, whole) for n in mine}
        firsts = {n: self._first(m, q) for n, m in sums.items()}
        first = self.everywhere(firsts, layout.p_size + layout.plain_size, torch.float32)
        ps = [torch.linalg.qr(first[m.p].view(m.rows, m.rank)).Q.contiguous() for m in layout.matrices]
        seconds = {n: self._second(m, ps) for n, m in sums.items()}
        second = self.everywhere(seconds, layout.q_size, torch.float32)
        self._gradient, at = torch.zeros(whole.stop), layout.p_size
        for window in layout.plain:
            length = window.stop - window.start
            self._gradient[window] = first[at : at + length]
            at += length
        for m, p in zip(layout.matrices, ps, strict=True):
            torch.mm(p, second[m.q].view(m.columns, m.rank).t(), out=m.of(self._gradient))
        for n, values in sums.items():
            for window in layout.plain:
                values[window].zero_()
            for m, p in zip(layout.matrices, ps, strict=True):
                m.of(values).sub_(p @ seconds[n][m.q].view(m.columns, m.rank).t())
        self._rest = sums
        self.replica.next_common = {Q: second}

    def _first(self, values: Tensor, q: Tensor) -> Tensor:
        """M Q of each matrix, then what travels as it is."""
        out = torch.zeros(self.layout.p_size)
        for m in self.layout.matrices:
            out[m.p] = (m.of(values) @ q[m.q].view(m.columns, m.rank)).view(-1)
        return torch.cat([out, *(values[w] for w in self.layout.plain)])

    def _second(self, values: Tensor, ps: Sequence[Tensor]) -> Tensor:
        """M^T P of each matrix."""
        out = torch.zeros(self.layout.q_size)
        for m, p in zip(self.layout.matrices, ps, strict=True):
            out[m.q] = (m.of(values).t() @ p).reshape(-1)
        return out

    # ---- as if the gradient had come in chunks ----------------------------------------------------

    def _packed(self, node: Node, window: slice) -> list[Tensor]:
        assert self._rest is not None
        return [self._leave(node, window, self._rest[node][window])]

    def _sum(self, blocks: Range, arrived: list[Tensor]) -> Tensor:
        self._unpacked(blocks, arrived)
        return self._gradient[self.ownership.space.elements(blocks)].view(1, -1)

    def _forward_sums(self, sums: dict[Range, Tensor]) -> None:
        """Nothing to send: everybody has it."""
        space = self.ownership.space
        held = self.ownership.held(self.rank)
        self.replica.reduced = {c: self._gradient[space.elements(c)].view(1, -1) for c in held}

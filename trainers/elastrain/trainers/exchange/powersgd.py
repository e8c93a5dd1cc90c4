"""PowerSGD: the gradient of each matrix travels as two thin factors (Vogels, Karimireddy and Jaggi,
"PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithms 1
and 2).

With M_n the sum of wire node n and its residual, as a matrix (rows, columns), and Q from the step before:

    P = sum_n M_n Q, made orthonormal      Q' = sum_n M_n^T P
    the gradient is P Q'^T                 what is left out of node n is M_n - P P^T M_n

Everybody needs both sums whole. Unlike packed sums they are plain ones, so a rank adds up what it has of them
before anything leaves; each rank then sums a part of them, in tree order, and sends it to all. Parameters of
one dimension, and matrices that the factors would not make smaller, go the same way as they are. Q is the
same on all ranks: it comes from the seed, changes with the commit, goes to joiners and is in checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from elastrain.trainers.exchange.coded import CodedReduction
from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.compression import Codec
from elastrain.trainers.exchange.residuals import Residuals
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.factors import Layout, Q
from elastrain.trainers.numerics.tree import Node, climb, root
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
        first = self._summed(firsts, layout.p_size + layout.plain_size)
        ps = [torch.linalg.qr(first[m.p].view(m.rows, m.rank)).Q.contiguous() for m in layout.matrices]
        seconds = {n: self._second(m, ps) for n, m in sums.items()}
        second = self._summed(seconds, layout.q_size)
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

    def _summed(self, own: Mapping[Node, Tensor], length: int) -> Tensor:
        """(length,) f32, the same on all ranks. own: of the own wire nodes.

        Of two ranks each sums all of it. Of more each sums a part, and sends less than twice the whole for
        each subtree that it has; the whole to everybody would be as often as there are others.
        """
        count, world, rank, apart = self.partial.count, self.world, self.rank, self.world > 2
        mine = climb(own, count)
        covers = [sorted(climb(dict.fromkeys(nodes, 0), count)) for nodes in self.covers]
        edges = [length * r // world for r in range(world + 1)]
        cuts = [slice(*edge) if apart else slice(0, length) for edge in pairwise(edges)]
        lengths = [cut.stop - cut.start for cut in cuts]
        sends = [torch.cat([mine[n][cut] for n in covers[rank]]) if mine else None for cut in cuts]
        sends[rank] = None
        sizes = [len(c) * lengths[rank] if r != rank else 0 for r, c in enumerate(covers)]
        parts = {node: value[cuts[rank]] for node, value in mine.items()}
        for r, data in enumerate(self.group.exchange(sends, sizes, torch.float32)):
            if r != rank and covers[r]:
                parts |= zip(covers[r], data.chunk(len(covers[r])), strict=True)
        total = root(parts, count)
        if not apart:
            return total
        sizes = [n if r != rank else 0 for r, n in enumerate(lengths)]
        others = self.group.exchange(
            [total if r != rank else None for r in range(world)], sizes, torch.float32
        )
        return torch.cat([total if r == rank else data for r, data in enumerate(others)])

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

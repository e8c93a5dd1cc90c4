"""Gossip: decentralized gradient descent over a graph (Nedic and Ozdaglar 2009; D-PSGD, Lian et al. 2017).

    x_i  <-  sum_j W_ij x_j  -  lr * update(g_i)

Every worker has parameters and optimizer state of its own, and averages its parameters with those that its
neighbours had at the same step; only neighbours exchange them. Their gradients are weighted such that the
mean of all g_i is the mean gradient of the global batch. The commit's small record is as everywhere: all
members make the same steps. W is built anew from the members of each generation (graphs.py).

The exchange begins before the gradients are computed and ends before the commit; so whoever has a commit
record, or learns of it later, has all that it needs for the update in its own memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.handover import Handover, send_common
from elastrain.trainers.exchange.reducing import Reduce
from elastrain.trainers.exchange.reduction import Reduction, square_norm
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.graphs import Graph, heard, hearers
from elastrain.trainers.numerics.memory import blank, blank_again
from elastrain.trainers.strategies.all_reduce import AllReduce
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.session import Session
from elastrain.trainers.training.step import Exchange


class Gossip(AllReduce):
    """Everybody keeps everything of its own."""

    twice = False

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def keeps(self, ownership: Ownership, rank: int) -> tuple[Ownership, int]:
        return Ownership.of(ownership.space, [ownership.domains[rank]]), 0

    def exchange(
        self, replica: Replica, group: Group, ownership: Ownership, workers: Sequence[str]
    ) -> Exchange:
        return Staying(replica, group, ownership, workers)

    def reducer(self, replica: Replica, group: Group, ownership: Ownership) -> Reduce:
        return partial(Mixing, replica, group, ownership, graph=self.graph)

    def hand_over(
        self,
        replica: Replica,
        opening: Opening,
        group: Group,
        ownership: Ownership,
    ) -> Handover | None:
        hand_over(replica, opening, group, self.graph)
        return None

    @contextlib.contextmanager
    def in_common(
        self, replica: Replica, group: Group, ownership: Ownership, session: Session
    ) -> Iterator[None]:
        """The mean of all. How far they are from it is told by two, one of whom may be lost."""
        with consensus(replica, group, ownership) as apart:
            if group.rank in (0, ownership.buddy[0]):
                session.send("measured", step=replica.step, metrics={"consensus_distance": apart})
            yield


class Mixing(Reduction):
    """Of one step: what the neighbours have, asked for before the gradients are computed, and the own sum."""

    def __init__(
        self,
        replica: Replica,
        group: Group,
        ownership: Ownership,
        has: Sequence[Sequence[int]],
        graph: Graph,
    ) -> None:
        super().__init__(replica, group, ownership, has)
        self.weights = heard(graph, self.world, self.rank)
        params, told = replica.model.params, hearers(graph, self.world, self.rank)
        sizes = [params.numel() if r in self.weights and r != self.rank else 0 for r in range(self.world)]
        sends = [params if r in told else None for r in range(self.world)]
        into = blank_again(sum(sizes), torch.float32, params.device)
        self._theirs = group.start_exchange(sends, sizes, torch.float32, into)

    def passed_on(self, bucket: int) -> None:
        """Nothing of a gradient is sent."""

    def finish(self) -> None:
        arrived, params = self._theirs(), self.replica.model.params
        mixed, apart = blank_again(len(params), params.dtype, params.device).zero_(), 0.0
        for other, weight in self.weights.items():
            theirs = params if other == self.rank else arrived[other]
            mixed.add_(theirs, alpha=weight)
            apart += weight * squared(theirs, params) if other != self.rank else 0.0
        self.replica.mixed, self.replica.apart = mixed, apart
        self._take_gradient()
        self._reduce_buffers()

    def _take_gradient(self) -> None:
        """`world` times the own sum: so the mean over the workers is the mean of the batch."""
        space, parts = self.replica.model.space, self.partial.gradients.parts
        total = blank_again(space.size, torch.float32).zero_()
        for node in sorted(parts):
            total += parts[node]
        wide = blank(space.block, torch.float64)
        self.norms = [self.world * square_norm(block, wide) for block in torch.split(total, space.block)]
        total *= self.world
        self.replica.reduced = {c: total[None, space.elements(c)] for c in self.replica.states.ranges()}


class Staying(Exchange):
    """After the update there is nothing to gather."""

    def start_gather(self) -> Callable[[], None]:
        self.replica.whole = True
        return lambda: None


def hand_over(replica: Replica, opening: Opening, group: Group, graph: Graph) -> None:
    """A joiner begins with the average of those neighbours that were there before, or of one survivor if it
    has none; parameters and optimizer state alike."""
    send_common(replica, opening, group)
    survivors, world = opening.survivors(), group.world
    sources = {
        r: [o for o in heard(graph, world, r) if o in survivors] or survivors[:1]
        for r in range(world)
        if r not in survivors
    }
    mine = _everything(replica) if any(group.rank in s for s in sources.values()) else None
    sends = [mine if group.rank in sources.get(r, ()) else None for r in range(world)]
    come, slots = sources.get(group.rank, []), replica.rule.slots
    space = replica.model.space
    size = space.size * (1 + len(slots))
    arrived = group.exchange(sends, [size if r in come else 0 for r in range(world)], torch.float32)
    if come:
        params, *state = torch.split(_mean([arrived[r] for r in come]), space.size)
        replica.model.params.copy_(params)
        for chunk in space.buckets():
            mean = {s: t[space.elements(chunk)].clone() for s, t in zip(slots, state, strict=True)}
            replica.states.put(chunk, mean)
    group.barrier()
    replica.whole = True


def _everything(replica: Replica) -> Tensor:
    """Parameters, then slot by slot the optimizer state. (size * (1 + slots),) f32"""
    whole = replica.states.read((0, replica.model.space.blocks))
    return torch.cat([replica.model.params, *(whole[s] for s in replica.rule.slots)])


def _mean(values: Sequence[Tensor]) -> Tensor:
    total = torch.zeros(values[0].numel(), dtype=torch.float64)
    for value in values:
        total += value
    return (total / len(values)).to(torch.float32)


def squared(a: Tensor, b: Tensor) -> float:
    """The squared distance, in fp64."""
    return float((a - b).to(torch.float64).square_().sum())


@contextlib.contextmanager
def consensus(replica: Replica, group: Group, ownership: Ownership) -> Iterator[float]:
    """While it lasts, the replica has the mean of all workers: their parameters, and the optimizer state of
    the chunks that it owns. Gives the consensus distance: the root mean square of how far they are off it."""
    space, slots, rank = replica.model.space, replica.rule.slots, group.rank
    owned = [[c for c in ownership.owned(r) if c[0] < c[1]] for r in range(group.world)]
    mine = _everything(replica)
    rows = mine.view(1 + len(slots), space.size)
    parts = [torch.cat([rows[:, space.elements(c)].reshape(-1) for c in o]) if o else None for o in owned]
    size = sum(map(space.length, owned[rank])) * len(rows)
    own_part = parts[rank]
    sends = [None if r == rank else part for r, part in enumerate(parts)]
    arrived = group.exchange(sends, [0 if r == rank else size for r in range(group.world)], torch.float32)
    mean = torch.empty(0)
    if own_part is not None:
        mean = _mean([own_part if r == rank else arrived[r] for r in range(group.world)])
    pieces, at = {}, 0
    for chunk in owned[rank]:
        length = space.length(chunk)
        pieces[chunk] = mean[at : at + length * len(rows)].view(len(rows), length)
        at += length * len(rows)
    params = _gathered(replica, group, owned, {c: p[0] for c, p in pieces.items()})
    apart = [float(a) for a in group.gather_json(squared(params, replica.model.params))]
    kept, states = replica.model.params.clone(), replica.states.pieces
    replica.model.params.copy_(params)
    replica.states.pieces = {c: dict(zip(slots, p[1:], strict=True)) for c, p in pieces.items()}
    try:
        yield math.sqrt(math.fsum(apart) / group.world)
    finally:
        replica.model.params.copy_(kept)
        replica.states.pieces = states


def _gathered(replica: Replica, group: Group, owned: list[list[Range]], mean: dict[Range, Tensor]) -> Tensor:
    """The mean parameters, whole, from the owners of their chunks."""
    space, rank = replica.model.space, group.rank
    mine = torch.cat([mean[c] for c in owned[rank]]) if owned[rank] else None
    sizes = [0 if r == rank else sum(map(space.length, owned[r])) for r in range(group.world)]
    arrived = group.exchange([None if r == rank else mine for r in range(group.world)], sizes, torch.float32)
    whole = torch.zeros(space.size)
    for owner, chunks in enumerate(owned):
        values, at = mine if owner == rank else arrived[owner], 0
        for chunk in chunks:
            assert values is not None
            whole[space.elements(chunk)] = values[at : at + space.length(chunk)]
            at += space.length(chunk)
    return whole

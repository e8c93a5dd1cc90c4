"""Which reduce a job's steps go through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from elastrain.trainers.exchange.coded import CodedReduction
from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.compression import codec
from elastrain.trainers.exchange.powersgd import PowerReduction
from elastrain.trainers.exchange.reduction import Reduction
from elastrain.trainers.exchange.residuals import Residuals
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.factors import Layout
from elastrain.trainers.spec.strategies import PowerSGD
from elastrain.trainers.training.replica import Replica

Reduce = Callable[[Sequence[Sequence[int]]], Reduction]  # given the microbatches that each rank will have


def reducer(replica: Replica, group: Group, ownership: Ownership) -> Reduce:
    """Of one generation."""
    spec = replica.spec.compression
    packing = codec(spec, ownership.space.block)
    if packing is None:
        return partial(Reduction, replica, group, ownership)
    if packing.feedback is None:
        return partial(CodedReduction, replica, group, ownership, codec=packing, residuals=None)
    residuals = Residuals(packing.feedback, replica.states, replica.unit, group, ownership)
    if isinstance(spec, PowerSGD):
        layout = Layout.of(ownership.space, spec.rank)
        factored = partial(PowerReduction, codec=packing, residuals=residuals, layout=layout)
        return partial(factored, replica, group, ownership)
    return partial(CodedReduction, replica, group, ownership, codec=packing, residuals=residuals)

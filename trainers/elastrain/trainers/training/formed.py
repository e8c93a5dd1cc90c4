"""A generation as one of its members has it, from forming to breaking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.reducing import Reduce
from elastrain.trainers.membership.balance import Balance
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.training.step import Exchange


@dataclass
class Generation:
    """One fixed set of members, from forming to breaking."""

    opening: Opening
    group: Group
    ownership: Ownership
    exchange: Exchange
    reduce: Reduce
    balance: Balance  # who computes what
    done: Sequence[Sequence[int]]  # gradients that members kept from a generation that broke
    sealed: bool = False  # all have what they keep in it
    log: int = 0  # commands up to this number take effect at this boundary
    handled: int = 0
    compared: int = -1  # step
    sound: int = -1  # step of which it is known that everything is finite
    owed: bool = False  # a checkpoint that was asked for
    snapshots: set[int] = field(default_factory=set)  # steps

    @property
    def number(self) -> int:
        return self.opening.generation

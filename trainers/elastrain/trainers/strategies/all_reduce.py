"""What a strategy may do in its own way within the one loop (loop.py); here, how all_reduce does it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.handover import Handover
from elastrain.trainers.exchange.reducing import Reduce, reducer
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.session import Session
from elastrain.trainers.training.step import Exchange


class AllReduce:
    """Gradients are summed over all, and owner and buddy of each chunk make its update."""

    twice = True  # what is kept is kept by two, who have the same bits

    def keeps(self, ownership: Ownership, rank: int) -> tuple[Ownership, int]:
        """Whose chunks, as which rank of them, a member keeps."""
        return ownership, rank

    def exchange(
        self, replica: Replica, group: Group, ownership: Ownership, workers: Sequence[str]
    ) -> Exchange:
        """The commit, and what follows the update."""
        return Exchange(replica, group, ownership, workers)

    def reducer(self, replica: Replica, group: Group, ownership: Ownership) -> Reduce:
        """From gradients to what an update takes."""
        return reducer(replica, group, ownership)

    def hand_over(
        self,
        replica: Replica,
        opening: Opening,
        group: Group,
        ownership: Ownership,
    ) -> Handover | None:
        """Everybody gets what it keeps in the new generation. Returns what is still on its way."""
        return Handover(replica, opening, group, ownership)

    @contextlib.contextmanager
    def in_common(
        self, replica: Replica, group: Group, ownership: Ownership, session: Session
    ) -> Iterator[None]:
        """While it lasts, the replica holds what is to be evaluated or saved."""
        yield

"""Do owner and buddy still have the same bits? Memory and processors err without telling.

Both make the same updates on the same numbers, so a cheap digest of what they keep has to come out alike. It
is compared at a boundary, before a checkpoint is made there: what is in a checkpoint was the same twice.

Found: whatever changed the parameters or optimizer state of a chunk on one of the two since the last time;
with two workers each of them has everything. Not found: what went wrong before the two parted, in a
microbatch's gradient or on its way to both; what happens to a worker's copy of chunks that it does not keep
(the next gather overwrites it); anything with one worker only, since there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.membership.messages import Range
from elastrain.trainers.membership.suspicion import Difference, Disagreement
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.training.faults import refuse
from elastrain.trainers.training.replica import Replica

EVERY = 50  # steps; and before each checkpoint

_WORD = 1 << 64


class Corrupt(Exception):
    """Two copies of some state differ. Nothing that is held can be trusted."""

    def __init__(self, found: Disagreement) -> None:
        super().__init__(f"owner and buddy differ at step {found.step}")
        self.found = found


def compare(
    replica: Replica, group: Group, ownership: Ownership, workers: Sequence[str], agreed: int
) -> None:
    """Every member calls it at the same boundary; agreed: the step at which it last returned. Raises Corrupt.

    At step 0 everybody has what the seed gives: if that differs, it is the user's fault, not the memory's.
    """
    parts = replica.shards.gather(digests(replica, ownership, group.rank))
    entry = {"agreed": agreed, "digests": ["-".join(each) for each in zip(*parts, strict=True)]}
    entries = group.gather_json(entry)
    found = differences([e["digests"] for e in entries], ownership, workers)
    if found and replica.step == 0:
        refuse(
            f"{type(replica.task).__name__}.model() gives other parameters on {found[0].owner} than on "
            f"{found[0].buddy}: whatever is random in it must come from torch, numpy or random, whose "
            "generators are seeded from the job's seed"
        )
    if found:
        raise Corrupt(Disagreement(replica.step, max(e["agreed"] for e in entries), tuple(found)))


def digests(replica: Replica, ownership: Ownership, rank: int) -> list[str]:
    """One for each chunk that `rank` keeps, in the order of `ownership.held`."""
    return [_digest(replica, chunk) for chunk in ownership.held(rank)]


def _digest(replica: Replica, chunk: Range) -> str:
    """The sum of the raw bits of parameters and optimizer state, each slot times another odd number: read at
    the speed of memory, and one flipped bit always changes it."""
    state = replica.states.read(chunk)
    tensors = [replica.model.params[replica.model.space.elements(chunk)], *(state[s] for s in sorted(state))]
    return f"{sum((2 * n + 1) * _sum(t) for n, t in enumerate(tensors)) % _WORD:x}"


def _sum(values: Tensor) -> int:
    """Their bytes, a multiple of four, as integers of 64 bits or else of 32; sums wrap around."""
    if values.numel() * values.element_size() % 8:
        return int(values.view(torch.int32).sum())
    if values.storage_offset() * values.element_size() % 8:
        values = values.clone()  # cut out of a larger one at an odd place
    return int(values.view(torch.int64).sum())


def differences(
    digests: Sequence[Sequence[str]], ownership: Ownership, workers: Sequence[str]
) -> list[Difference]:
    """Owners and buddies that do not agree. digests: by rank, as above."""
    said = [dict(zip(ownership.held(rank), d, strict=True)) for rank, d in enumerate(digests)]
    found: list[Difference] = []
    for owner, buddy in enumerate(ownership.buddy):
        if buddy is not None:
            chunks = [c for c in ownership.owned(owner) if c[0] < c[1]]
            differ = tuple(c for c in chunks if said[owner][c] != said[buddy][c])
            found += [Difference(workers[owner], workers[buddy], differ)] if differ else []
    return found

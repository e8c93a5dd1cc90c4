"""Which samples a step reads: a computed permutation, cut into global batches and microbatches.

The order of an epoch is a function of (seed, epoch) alone. It is computed per position and never stored, so
a cursor is nothing but a step number, and no worker count, restart or resume can change which sample comes
where.

Permutation: a generalised Feistel network on the grid a x b >= n (Black and Rogaway, "Ciphers with
Arbitrary Finite Domains", CT-RSA 2002, method 3 with cycle walking), its round function the finaliser of
splitmix64 (Steele, Lea and Flood, OOPSLA 2014). Quality for shuffling, not for secrecy.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]

_ROUNDS = 10  # small domains need several: with 10, all 24 orders of 4 samples come about equally often


class EmptyDataset(ValueError):
    """The dataset has no samples, so there is nothing to train on or to evaluate."""


def sample_order(
    seed: int, epoch: int, n: int, positions: "Indices | Sequence[int]", shuffle: bool = True
) -> Indices:
    """The sample indices at `positions` of an epoch over `n` samples.

    positions: (k,) each in 0..n-1. Returns (k,) int64. For one (seed, epoch), a bijection on 0..n-1;
    without `shuffle`, the identity. Raises EmptyDataset for n = 0, IndexError for a position outside.
    """
    if n < 1:
        raise EmptyDataset(f"the dataset has {n} samples: nothing to read")
    where = np.asarray(positions, dtype=np.int64)
    if where.size and (where.min() < 0 or where.max() >= n):
        raise IndexError(f"positions {where.min()}..{where.max()} are outside an epoch of {n} samples")
    if not shuffle or n == 1:
        return where.copy()
    return _permute(where.astype(np.uint64), n, _round_keys(seed, epoch)).astype(np.int64)


def _permute(x: _Words, n: int, keys: _Words) -> _Words:
    """One walk through the network; whatever falls outside 0..n-1 walks again until it is inside."""
    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)  # rows * columns >= n, by less than one row too many
    x = _network(x, rows, columns, keys)
    outside = x >= n
    while outside.any():
        x[outside] = _network(x[outside], rows, columns, keys)
        outside = x >= n
    return x


def _network(x: _Words, rows: int, columns: int, keys: _Words) -> _Words:
    a, b = np.uint64(rows), np.uint64(columns)
    left, right = x % a, x // a
    for number, key in enumerate(keys):
        if number % 2:
            right = (right + _mix(left ^ key) % b) % b
        else:
            left = (left + _mix(right ^ key) % a) % a
    return left + right * a


def _round_keys(seed: int, epoch: int) -> _Words:
    word = _mix(np.array([seed % 2**64], dtype=np.uint64))
    word = _mix(word ^ np.array([epoch % 2**64], dtype=np.uint64))
    return _mix(word + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _mix(x: _Words) -> _Words:
    """splitmix64's finaliser, on 64-bit words that wrap around."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Plan:
    """Which samples each microbatch of each step reads, for the whole job.

    n: samples of the dataset. batch: samples of a global batch. microbatch: samples of a microbatch,
    divides batch. Exactly one of epochs and steps. Each epoch has every sample exactly once; its last batch
    is short where n is not a multiple of batch, and a short batch of k samples is cut into ceil(k /
    microbatch) near-equal microbatches. Nothing is padded or dropped.

    Raises EmptyDataset for n = 0 and ValueError for sizes that do not fit.
    """

    def __init__(
        self,
        n: int,
        batch: int,
        microbatch: int,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if n < 1:
            raise EmptyDataset(f"the dataset has {n} samples: nothing to train on")
        if batch < 1 or microbatch < 1 or batch % microbatch:
            raise ValueError(f"a batch of {batch} cannot be cut into microbatches of {microbatch}")
        if (epochs is None) == (steps is None):
            raise ValueError("give exactly one of epochs and steps")
        self.n, self.batch, self.microbatch = n, batch, microbatch
        self.seed, self.shuffle = seed, shuffle
        self.steps_per_epoch = -(-n // batch)
        self.total_steps = steps if steps is not None else (epochs or 0) * self.steps_per_epoch
        if self.total_steps < 1:
            raise ValueError(f"nothing to do: epochs is {epochs}, steps is {steps}")

    def epoch(self, step: int) -> int:
        """The epoch, from 0, that step belongs to."""
        return step // self.steps_per_epoch

    def samples(self, step: int) -> int:
        """How many samples the global batch of `step` has: batch, or fewer at the end of an epoch."""
        self._check(step)
        return min(self.batch, self.n - step % self.steps_per_epoch * self.batch)

    def count(self, step: int) -> int:
        """How many microbatches are present in `step`."""
        return -(-self.samples(step) // self.microbatch)

    def positions(self, step: int, j: int) -> range:
        """The positions within the epoch that microbatch j of `step` takes, before the permutation."""
        samples, count = self.samples(step), self.count(step)
        if not 0 <= j < count:
            raise IndexError(f"step {step} has microbatches 0..{count - 1}, not {j}")
        small, larger = divmod(samples, count)  # the first `larger` ones have one sample more
        first = step % self.steps_per_epoch * self.batch + j * small + min(j, larger)
        return range(first, first + small + (j < larger))

    def indices(self, step: int, j: int) -> Indices:
        """The dataset indices of microbatch j of `step`, in order. Returns (k,) int64."""
        return sample_order(self.seed, self.epoch(step), self.n, self.positions(step, j), self.shuffle)

    def inner_steps(self, step: int) -> int:
        """How often a parameter that is used is updated in `step`."""
        return 1

    def first_read(self, step: int, j: int) -> Indices:
        """The dataset indices that are read first when microbatch j of `step` is computed."""
        return self.indices(step, j)

    def samples_seen(self, step: int) -> int:
        """How many samples the steps before `step` read, counting a sample again in each epoch."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.n + min(rest * self.batch, self.n)

    def _check(self, step: int) -> None:
        if not 0 <= step < self.total_steps:
            raise IndexError(f"the plan has steps 0..{self.total_steps - 1}, not {step}")


class EvalPlan(Plan):
    """One pass over the dataset in its own order: the steps of an evaluation."""

    def __init__(self, n: int, batch: int, microbatch: int) -> None:
        super().__init__(n, batch, microbatch, epochs=1, shuffle=False)

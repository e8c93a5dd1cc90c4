"""What a step of a job is: which samples it reads, who of the replicas reads them, what its record means.

With most strategies a step is a global batch, and a microbatch of it the unit of work. With local_sgd it is a
*round*: as many batches as there are local steps, and the unit of work is the *run* of one logical replica
through its part of them. Replicas are as many as the spec says, whatever the workers do. Pure, no torch.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.cursor import Verdict
from elastrain.trainers.numerics.data import Indices, Plan
from elastrain.trainers.spec.strategies import LocalSGD

if TYPE_CHECKING:
    from elastrain.trainers.spec import JobSpec


class Rounds(Plan):
    """Step s is round s, its microbatch r the run of replica r: local_steps x batch / replicas samples, cut
    into local_steps inner batches, and these into microbatches.

    A short last round of an epoch has shorter runs and fewer inner steps, the same number for every replica;
    fewer replicas only if there are not enough samples for one inner batch each.
    """

    def __init__(self, n: int, spec: JobSpec, strategy: LocalSGD) -> None:
        self.replicas = strategy.replicas or spec.microbatches
        self.inner_batch, self.inner_microbatch = spec.batch.size // self.replicas, spec.batch.microbatch
        super().__init__(
            n,
            spec.batch.size * strategy.local_steps,
            self.inner_batch * strategy.local_steps,
            epochs=spec.epochs,
            steps=spec.steps,
            seed=spec.seed,
            shuffle=spec.shuffle,
        )

    def count(self, step: int) -> int:
        return min(self.replicas, -(-self.samples(step) // self.inner_batch))

    def inner_steps(self, step: int) -> int:
        """How many updates each replica makes in round `step`."""
        shortest = self.samples(step) // self.count(step)
        return max(1, -(-shortest // self.inner_batch))

    def cuts(self, step: int, replica: int) -> list[list[Indices]]:
        """The dataset indices of a run: inner steps, each a list of microbatches, each (k,) int64."""
        batches = _cut(self.indices(step, replica), self.inner_steps(step))
        return [_cut(batch, -(-len(batch) // self.inner_microbatch)) for batch in batches]

    def first_read(self, step: int, j: int) -> Indices:
        return self.cuts(step, j)[0][0]


def _cut(indices: Indices, parts: int) -> list[Indices]:
    """Near-equal runs, the first ones larger by one."""
    small, larger = divmod(len(indices), parts)
    edges = [part * small + min(part, larger) for part in range(parts + 1)]
    return [indices[a:b] for a, b in itertools.pairwise(edges)]


def plan_of(spec: JobSpec, samples: int) -> Plan:
    """Which samples each step reads. Raises EmptyDataset."""
    if isinstance(spec.strategy, LocalSGD):
        return Rounds(samples, spec, spec.strategy)
    return Plan(
        samples,
        spec.batch.size,
        spec.batch.microbatch,
        epochs=spec.epochs,
        steps=spec.steps,
        seed=spec.seed,
        shuffle=spec.shuffle,
    )


def scale_of(samples: int) -> float:
    """What losses are multiplied with where so many samples are added up. A power of two: multiplying with it
    and dividing by it again changes no bit."""
    return 2.0 ** -(samples - 1).bit_length()


def verdict_of(spec: JobSpec, plan: Plan, record: Json) -> Verdict:
    """With local_sgd gradients are clipped where they are: within the inner steps."""
    clip_norm = None if isinstance(plan, Rounds) else spec.clip_norm
    return Verdict.of(record, scale_of(plan.batch), clip_norm)

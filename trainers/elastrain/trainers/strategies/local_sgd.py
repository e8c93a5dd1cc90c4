"""local_sgd: logical replicas train by themselves for some steps, then are averaged.

A step of the loop is a round. Everything is common when it begins: parameters, the inner optimizer's state,
buffers. The run of replica r is a pure function of that and of its samples, so it does not matter who
computes it, or whether it is begun anew. It takes its inner steps beside the common parameters, which stay as
they are; at its end it sends up the tree how far it went and what its inner state is (outer.py).

A run that is under way survives a broken generation, as finished ones do: a worker that is lost costs its own
inner steps of this round, and nobody else's.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from elastrain.trainers.exchange.reduction import square_norm
from elastrain.trainers.numerics.cursor import exact_sum
from elastrain.trainers.numerics.data import Indices
from elastrain.trainers.numerics.partials import GradientSums, Partial, PassedOn
from elastrain.trainers.numerics.rounds import Rounds, scale_of
from elastrain.trainers.numerics.tree import Climber, root_node
from elastrain.trainers.strategies.outer import RoundRule
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.samples import SampleReader
from elastrain.trainers.training.step import forward


def compute(
    replica: Replica, reader: SampleReader, step: int, number: int, passed_on: PassedOn | None = None
) -> bool:
    """One inner step of replica `number` in round `step`. True: it was its last one, and its contribution is
    in what this worker has of the round."""
    partial = replica.partial
    assert partial is not None
    run = partial.under_way.get(number) or Run(replica, step, number)
    partial.under_way[number] = run
    run.advance(reader)
    if run.over:
        run.contribute(partial, passed_on)
        del partial.under_way[number]
    return run.over


class Run:
    """The inner steps of one replica in one round."""

    def __init__(self, replica: Replica, step: int, number: int) -> None:
        assert isinstance(replica.plan, Rounds) and isinstance(replica.rule, RoundRule)
        assert replica.cursor is not None
        self.replica, self.step, self.number = replica, step, number
        self.rule, self.cuts = replica.rule.inner, replica.plan.cuts(step, number)
        self.scale = scale_of(replica.plan.inner_batch)
        self.params = replica.model.params.clone()  # (size,) f32
        self.state = {slot: value.clone() for slot, value in replica.gathered.items()}  # each (size,) f32
        self.buffers = {name: base.clone() for name, base in replica.model.buffers.base.items()}
        self.counts = replica.cursor.counts
        self.rate = replica.rate(replace(replica.cursor, updates=replica.cursor.updates + 1))
        self.at = self.used = 0
        self.loss, self.weight, self.seconds = 0.0, 0.0, 0.0

    @property
    def over(self) -> bool:
        return self.at == len(self.cuts)

    # ---- an inner step ----------------------------------------------------------------------

    def advance(self, reader: SampleReader) -> None:
        """The next inner step. If it raises, the run is as it was before."""
        started, model = time.perf_counter(), self.replica.model
        cut = self.cuts[self.at]
        sums = GradientSums(model.space, self.replica.filling, len(cut))
        floats: Climber[Tensor] = Climber(len(cut), inplace=True)
        loss = weight = 0.0
        used = 0
        with model.standing_in(self.params, self.buffers):
            for part, indices in enumerate(cut):
                one, its_weight, uses = self._backward(reader, sums, part, indices)
                loss, weight, used = loss + one, weight + its_weight, used | uses
                if model.buffers.floats:
                    floats.add(part, model.buffers.floats_now(its_weight))
            if weight > 0:
                top = root_node(len(cut))
                mean = floats.parts[top] / weight if model.buffers.floats else torch.empty(0)
                model.buffers.commit(mean, model.buffers.others_now())
                self._update(sums.read(top), weight, used)
        self.at, self.used = self.at + 1, self.used | used
        self.loss, self.weight = self.loss + loss, self.weight + weight
        self.seconds += time.perf_counter() - started

    def _backward(
        self, reader: SampleReader, sums: GradientSums, part: int, indices: Indices
    ) -> tuple[float, float, int]:
        """One microbatch of the inner step. Returns (loss sum, weight, parameters that were used)."""
        replica = self.replica
        batch = reader.read("train", replica.plan.epoch(self.step), indices)
        loss = forward(replica, batch, self.step, self.number, self.at, part)
        addend = sums.open(part, early=False, passed_on=None)
        with replica.model.handing_over(addend.take):
            (loss.sum * self.scale).backward()  # type: ignore[no-untyped-call]
        addend.close()
        return float(loss.sum.detach()), float(loss.weight), addend.used

    def _update(self, gradient: Tensor, weight: float, used: int) -> None:
        """gradient: (size,) f32, summed and scaled."""
        space, spec = self.replica.model.space, self.replica.spec
        clip_norm, limit = spec.clip_norm, spec.clip_value
        factor = 1.0 / (self.scale * weight)
        if clip_norm is not None or limit is not None:
            wide = torch.empty(space.block, dtype=torch.float64)
            blocks = torch.split(gradient, space.block)
            norm = math.sqrt(exact_sum(square_norm(block, wide) for block in blocks)) * factor
            factor *= min(1.0, clip_norm / (norm + 1e-6)) if clip_norm is not None else 1.0
            limit = limit if math.isfinite(norm) else None  # infinity must not come out of it as a number
        self.counts = self.counts.advance(used, len(self.replica.model.parameters))
        for window, count, decay in self.replica.runs((0, space.blocks), used, self.counts):
            state = {slot: value[window] for slot, value in self.state.items()}
            mean = gradient[window].mul_(factor)
            if limit is not None:
                mean.clamp_(-limit, limit)
            self.rule.update(self.params[window], mean, state, count, self.rate, decay)

    # ---- afterwards -------------------------------------------------------------------------

    def contribute(self, partial: Partial, passed_on: PassedOn | None) -> None:
        """How far the replica went and its inner state, each times its weight, go up the tree."""
        replica, model = self.replica, self.replica.model
        addend = partial.gradients.open(self.number, early=False, passed_on=passed_on)
        went, *inner = addend.vector.view(partial.gradients.lanes, -1)
        share = self.weight * replica.scale
        torch.sub(model.params, self.params, out=went).mul_(share)
        for lane, slot in zip(inner, self.rule.slots, strict=True):
            torch.mul(self.state[slot], share, out=lane)
        for gap in model.space.gaps():  # nothing lies there, and nothing comes to lie there
            addend.vector.view(partial.gradients.lanes, -1)[:, gap] = 0.0
        addend.used = self.used
        with model.standing_in(self.params, self.buffers):
            model.buffers.reset()
            if model.buffers.floats:
                partial.buffers.add(self.number, model.buffers.floats_now(self.weight))
            partial.others, digest = model.buffers.others_now(), model.buffers.others_digest()
        addend.close()
        partial.used |= self.used
        ids = hashlib.sha256(replica.plan.indices(self.step, self.number).astype("<i8").tobytes())
        seconds = round(self.seconds, 6)
        partial.rows[self.number] = [
            self.number, self.loss, self.weight, seconds, ids.hexdigest()[:16], digest,
        ]  # fmt: skip

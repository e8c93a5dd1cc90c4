"""A microbatch where the processes of a worker have some layers each (`split: pipeline`): what step.py and
evaluate.py do where the model can be called."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.cursor import exact_sum, int_or
from elastrain.trainers.numerics.partials import PassedOn
from elastrain.trainers.split.pieces import pieces_of
from elastrain.trainers.split.stage import Work
from elastrain.trainers.split.stand_ins import Inputs, asked, shape_of
from elastrain.trainers.task import Loss, Mean, loss_of, metrics_of
from elastrain.trainers.training import step
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.samples import SampleReader, aligned, seed_everything
from elastrain.trainers.training.step import note, precision

if TYPE_CHECKING:
    from elastrain.trainers.split.pipeline import PipelineModel


def computing(replica: Replica) -> Callable[..., bool]:
    """How the gradient of a microbatch is made."""
    return compute if replica.model.staged else step.compute


def compute(
    replica: Replica,
    reader: SampleReader,
    at: int,
    microbatch: int,
    passed_on: PassedOn | None = None,
) -> bool:
    """As `compute` of step.py. The sums are added, and passed on, when the schedule is over."""
    sums, started = replica.partial, time.perf_counter()
    assert sums is not None
    model, shards = cast("PipelineModel", replica.model), replica.shards
    indices = replica.plan.indices(at, microbatch)
    samples = reader.read("train", replica.plan.epoch(at), indices)
    losses: list[list[float]] = []

    def answer(batch: Any, stand_in: nn.Module) -> Tensor:
        loss = loss_of(replica.task, stand_in, batch)
        losses.append([float(loss.sum.detach()), float(loss.weight)])
        return loss.sum * replica.scale

    floats = _run(replica, samples, True, answer, at, microbatch)
    losses = shards.gather(losses)[-1]
    used = int_or(shards.gather(model.used()))
    addend = sums.gradients.open(microbatch, early=False, passed_on=passed_on)
    try:
        model.hand_over(used, addend.take)
    except BaseException:
        sums.forget(addend.abandon())
        raise
    if floats:
        weighted = [now.mul_(weight) for now, (_, weight) in zip(floats, losses, strict=True)]
        sums.buffers.add(microbatch, model.add_up(torch.stack(weighted).sum(0)))
    model.tell_others()
    addend.close()
    total, weight = (exact_sum(column) for column in zip(*losses, strict=True))
    note(replica, microbatch, indices, total, weight, used, started)
    return True


def means(replica: Replica, reader: SampleReader, position: int, microbatch: int) -> Json:
    """As `_means` of evaluate.py: sum and weight of the loss and of each metric of a microbatch."""
    assert replica.eval_plan is not None
    samples = reader.read("val", 0, replica.eval_plan.indices(position, microbatch))
    found: list[Json] = []

    def answer(batch: Any, stand_in: nn.Module) -> Tensor:
        loss = loss_of(replica.task, stand_in, batch)
        values: dict[str, Loss | Mean] = {"loss": loss, **metrics_of(replica.task, stand_in, batch)}
        found.append({name: [float(mean.sum), float(mean.weight)] for name, mean in values.items()})
        return torch.zeros(())

    _run(replica, samples, False, answer, "evaluate", replica.step, position, microbatch)
    replica.model.buffers.reset()
    told: list[Json] = replica.shards.gather(found)[-1]
    if len({tuple(each) for each in told}) > 1:
        raise ValueError(f"metrics have other names for one piece of a microbatch than for another: {told}")
    return {name: [exact_sum(p[name][kind] for p in told) for kind in (0, 1)] for name in told[0]}


def _run(
    replica: Replica,
    samples: list[Any],
    training: bool,
    answer: Callable[[Any, nn.Module], Tensor],
    *place: object,
) -> list[Tensor]:
    """place: what seeds the generators."""
    model = cast("PipelineModel", replica.model)
    model.ready((replica.shards.generation, replica.step))
    seed = partial(seed_everything, replica.spec.seed, *place)
    pieces = pieces_of(len(samples), replica.shards.count, model.least)
    batches, inputs = _asked(replica, samples, pieces, training, seed)
    if len({repr(shape_of(given)) for given in inputs}) > 1:  # what travels between stages has one shape
        batches, inputs = _asked(replica, samples, 1, training, seed)
    work = Work(
        training,
        inputs,
        lambda piece, stand_in: answer(batches[piece], stand_in),
        seed,
        partial(precision, replica),
    )
    return model.run(work)


def _asked(
    replica: Replica, samples: list[Any], pieces: int, training: bool, seed: Callable[..., None]
) -> tuple[list[Any], list[Inputs]]:
    """The samples in so many batches, and with what the Task calls the model for each."""
    size, batches, inputs = len(samples) // pieces, list[Any](), list[Inputs]()
    for piece in range(pieces):
        seed("collate", piece, pieces)
        batch = aligned(replica.task.collate(samples[piece * size : (piece + 1) * size]))
        batches.append(batch)
        seed("piece", piece)
        with torch.set_grad_enabled(training), precision(replica):
            inputs.append(_asked_with(replica, batch, training))
    return batches, inputs


def _asked_with(replica: Replica, batch: Any, training: bool) -> Inputs:
    if replica.shards.number == replica.shards.count - 1:
        batch = copy.deepcopy(batch)  # the last stage calls the loss once more, which may write into it
    return asked(lambda stand_in: replica.task.loss(stand_in, batch), training)

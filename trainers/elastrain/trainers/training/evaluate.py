"""Evaluation: steps of the same loop without an update. The cursor counts them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.cursor import exact_sum, merge_evaluation
from elastrain.trainers.split import staged
from elastrain.trainers.task import loss_of, metrics_of
from elastrain.trainers.training.faults import blamed_on_user
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.samples import SampleReader, seed_everything
from elastrain.trainers.training.session import Session
from elastrain.trainers.training.step import precision


def evaluate_step(
    replica: Replica,
    reader: SampleReader,
    session: Session,
    group: Group,
    generation: int,
    shares: Sequence[Sequence[int]],
) -> int:
    """One global batch of the validation split; shares[r]: the microbatches of rank r. Moves the cursor;
    returns the newest command number that any member knows."""
    assert replica.cursor is not None and replica.eval_plan is not None
    plan = replica.eval_plan
    position = replica.cursor.position
    rows, means = [], staged.means if replica.model.staged else _means
    for microbatch in shares[group.rank]:
        replica.shards.go_on(lambda: session.works(generation))
        with blamed_on_user("evaluate", replica.step, microbatch):
            rows.append([microbatch, means(replica, reader, position, microbatch)])
    entries = group.gather_json({"log": session.log_number, "microbatches": rows})
    replica.cursor = merge_evaluation(replica.cursor, entries, plan.total_steps)
    return int(max(e["log"] for e in entries))


def _means(replica: Replica, reader: SampleReader, position: int, microbatch: int) -> Json:
    plan, module = replica.eval_plan, replica.model.module
    assert plan is not None
    indices = plan.indices(position, microbatch)
    batch = reader.read("val", 0, indices)
    replica.model.ready((replica.shards.generation, replica.step))
    replica.model.buffers.reset()
    module.eval()
    place = "evaluate", replica.step, position, microbatch, *replica.shards.place
    seed_everything(replica.spec.seed, *place)
    with torch.no_grad(), precision(replica):
        loss = loss_of(replica.task, module, batch)
        means = metrics_of(replica.task, module, batch)
    replica.model.buffers.reset()
    values = {name: [float(mean.sum), float(mean.weight)] for name, mean in means.items()}
    values = {"loss": [float(loss.sum), float(loss.weight)], **values}
    if replica.shards.count > 1:
        return _in_all(replica, values, replica.shards.tells and replica.shards.counts(len(indices)))
    return values


def _in_all(replica: Replica, values: Json, counts: bool) -> Json:
    """Of all parts of the microbatch; counts: whether this process has one. Raises ValueError."""
    said: list[Json] = replica.shards.gather({"counts": counts, "values": values})
    if len({tuple(each["values"]) for each in said}) > 1:
        raise ValueError(f"metrics have other names on one process of a worker than on another: {said}")
    parts = [each["values"] for each in said if each["counts"]]
    return {name: [exact_sum(p[name][kind] for p in parts) for kind in (0, 1)] for name in values}


def evaluation_due(replica: Replica, last: bool) -> bool:
    """At this boundary? last: nothing comes after it."""
    evaluate = replica.spec.evaluate
    assert replica.cursor is not None
    if replica.eval_plan is None or replica.step == 0 or replica.cursor.evaluated_step == replica.step:
        return False
    every = evaluate.every_steps
    return (last and evaluate.at_end) or (every is not None and replica.step % every == 0)

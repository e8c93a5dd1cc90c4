"""Evaluation: steps of the same loop without an update. The cursor counts them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from elastrain.trainers.collectives import Group
from elastrain.trainers.cursor import merge_evaluation
from elastrain.trainers.faults import blamed_on_user
from elastrain.trainers.messages import Json
from elastrain.trainers.replica import Replica
from elastrain.trainers.samples import SampleReader, seed_everything
from elastrain.trainers.session import Session
from elastrain.trainers.step import precision
from elastrain.trainers.task import loss_of, metrics_of


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
    rows = []
    for microbatch in shares[group.rank]:
        session.works(generation)
        with blamed_on_user("evaluate", replica.step, microbatch):
            rows.append([microbatch, _means(replica, reader, position, microbatch)])
    entries = group.gather_json({"log": session.log_number, "microbatches": rows})
    replica.cursor = merge_evaluation(replica.cursor, entries, plan.total_steps)
    return int(max(e["log"] for e in entries))


def _means(replica: Replica, reader: SampleReader, position: int, microbatch: int) -> Json:
    plan, module = replica.eval_plan, replica.model.module
    assert plan is not None
    batch = reader.read("val", 0, plan.indices(position, microbatch))
    replica.model.buffers.reset()
    module.eval()
    seed_everything(replica.spec.seed, "evaluate", replica.step, position, microbatch)
    with torch.no_grad(), precision(replica):
        loss = loss_of(replica.task, module, batch)
        means = metrics_of(replica.task, module, batch)
    replica.model.buffers.reset()
    values = {name: [float(mean.sum), float(mean.weight)] for name, mean in means.items()}
    return {"loss": [float(loss.sum), float(loss.weight)], **values}

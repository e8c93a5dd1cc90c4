"""What a step costs on the wire: workers as threads train two steps; the bytes of the second are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.reducing import reducer
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.partials import Partial
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.task import Task
from elastrain.trainers.tasks.digits import Digits
from elastrain.trainers.training.replica import Replica, make_module
from elastrain.trainers.training.step import Exchange
from engine.tasks.toy import Toy
from trainers.room import Room

STEPS = 10
SGD = {"name": "sgd", "lr": 0.1}
LOCAL = {"name": "local_sgd", "local_steps": STEPS, "replicas": 4}
DOCS = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"


class Bare(Toy):
    """Without buffers, which are sent beside all this."""

    def model(self) -> nn.Module:
        return nn.Linear(20, 400)


def sent(workers: int, task: Task, **fields: Any) -> float:
    """Bytes that a worker sends in a step, per parameter. A microbatch each."""
    said = {"name": "x", "task": "a:B", "steps": 2, "workers": {"max": workers}}
    spec = parse_spec({**said, "batch": {"size": 16 * workers, "microbatch": 16}, **fields})
    room, size, before = Room(workers), 0, 0
    names = [f"w{r}" for r in range(workers)]

    def steps(group: Group) -> None:
        nonlocal size, before
        replica = Replica(spec, task, FlatModel(make_module(task, 0)), 16 * workers * 64, 0)
        own = Ownership.of(replica.model.space, [Domain(w, w, w) for w in names])
        replica.begin(own, group.rank)
        reduce, exchange = reducer(replica, group, own), Exchange(replica, group, own, names)
        for step in range(2):
            group.barrier()
            if step == 1 and group.rank == 0:
                before = sum(room.bytes)
            group.barrier()
            computed(replica, group.rank)
            reduction = reduce([[r] for r in range(workers)])
            reduction.finish()
            assert replica.apply(exchange.commit(0, reduction.norms)).applied
            reduction.committed(True)
            exchange.start_gather()()
        size = sum(p.numel() for p in replica.model.parameters)

    room.all(steps)
    return (sum(room.bytes) - before) / workers / size


def computed(replica: Replica, rank: int) -> Partial:
    """Its microbatch, with some gradient."""
    partial = replica.at_hand()
    addend = partial.gradients.open(rank, early=False, passed_on=None)
    generator = torch.Generator().manual_seed(rank)
    for piece in replica.model.space.pieces:
        addend.take(piece, torch.randn(piece.shape, generator=generator))
    for lane in addend.vector.view(partial.gradients.lanes, -1)[1:]:
        lane.copy_(addend.vector[: replica.model.space.size])
    addend.close()
    partial.used = addend.used
    if replica.model.buffers.floats:
        partial.buffers.add(rank, replica.model.buffers.floats_now(16.0))
    partial.others = replica.model.buffers.others_now()
    partial.rows[rank] = [rank, 1.0, 16.0, 0.1, "", ""]
    return partial


def bytes_per_batch(**fields: Any) -> float:
    """That four workers together send for a global batch, in units of the parameters' own size."""
    batches = fields.get("strategy", {}).get("local_steps", 1)
    return 4 * sent(4, Bare(), **fields) / 4 / batches


DEFAULT = pytest.approx(
    3 + 1 + 2, rel=0.05
)  # of 4: to three owners, to the buddy, to those two who keep no copy


def test_the_default_sends_a_gradient_to_its_owner_and_buddy_and_gathers_parameters() -> None:
    assert bytes_per_batch(optimizer=SGD) == bytes_per_batch() == DEFAULT


def test_moments_send_two_lanes_up_and_parameters_down() -> None:
    assert bytes_per_batch(aggregate="moments") == pytest.approx(2 * (3 + 1) + 2, rel=0.05)


@pytest.mark.parametrize(
    ("optimizer", "lanes"), [(SGD, 1), ({**SGD, "momentum": 0.9}, 2), ({"name": "adam"}, 3)]
)
def test_a_round_sends_what_a_step_does_times_its_lanes_for_as_many_batches(
    optimizer: dict[str, Any], lanes: int
) -> None:
    assert bytes_per_batch(strategy=LOCAL, optimizer=optimizer) == pytest.approx(lanes * 6 / STEPS, rel=0.05)


@pytest.mark.parametrize("down", ["bf16", "int8"])
def test_an_update_that_is_packed_travels_down_in_two_bytes_or_one(down: str) -> None:
    packed = {"bf16": 2, "int8": 68 / 64}[down]
    assert bytes_per_batch(compression_down=down) == pytest.approx(3 + 1 + 2 * packed / 4, rel=0.05)


# ---- the table of docs/algorithms.md ------------------------------------------------------------------

SCHEMES: dict[str, Any] = {
    "none": "none",
    "bf16": "bf16",
    "fp16": "fp16",
    "int8": "int8",
    "topk 0.05": {"name": "topk", "fraction": 0.05},
    "topk 0.01": {"name": "topk", "fraction": 0.01},
    "powersgd 4": {"name": "powersgd", "rank": 4},
}
WORKERS = {"2 workers": 2, "4 workers": 4, "8 workers": 8}


def table() -> dict[str, list[str]]:
    text = DOCS.read_text().split("*Bytes that a worker sends")[1].split("\n\n")[1]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert head[1:] == list(SCHEMES)
    return {first: cells for first, *cells in rows}


@pytest.mark.parametrize("down", ["none", "int8"])
@pytest.mark.parametrize("workers", WORKERS)
def test_the_bytes_that_the_docs_name_are_those_that_are_sent(workers: str, down: str) -> None:
    row = table()[workers + (f", `compression_down: {down}`" if down != "none" else "")]
    task = Digits(channels=32, hidden=64, dropout=0.2, batch_norm=True)
    counted = [sent(WORKERS[workers], task, compression=c, compression_down=down) for c in SCHEMES.values()]
    assert row == [f"{value:.2f}" for value in counted]

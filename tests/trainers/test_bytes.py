"""What a step costs on the wire: four workers as threads train one step, and what they send is counted."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from elastrain.trainers.chunks import Domain, Ownership
from elastrain.trainers.collectives import Group
from elastrain.trainers.flat import FlatModel
from elastrain.trainers.reduction import Reduction
from elastrain.trainers.replica import Replica, make_module
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.step import Exchange
from engine.tasks.toy import Toy
from trainers.room import Room

WORKERS, STEPS = 4, 10
SGD = {"name": "sgd", "lr": 0.1}
LOCAL = {"name": "local_sgd", "local_steps": STEPS, "replicas": WORKERS}


class Bare(Toy):
    """Without buffers, which are sent beside all this."""

    def model(self) -> nn.Module:
        return nn.Linear(20, 400)


def bytes_per_batch(**fields: Any) -> float:
    """That all workers together send for a global batch, in units of the parameters' own size."""
    spec = parse_spec(
        {
            "name": "toy",
            "task": "engine.tasks.toy:Toy",
            "steps": 1,
            "batch": {"size": 64, "microbatch": 16},
            **fields,
        }
    )
    room, size = Room(WORKERS), 0

    def step(group: Group) -> None:
        nonlocal size
        task = Bare()
        replica = Replica(spec, task, FlatModel(make_module(task, 0)), 640, 0)
        own = Ownership.of(replica.model.space, [Domain(f"w{r}", f"w{r}", f"n{r}") for r in range(WORKERS)])
        replica.begin(own, group.rank)
        partial = replica.at_hand()
        addend = partial.gradients.open(group.rank, early=False, passed_on=None)
        addend.vector.fill_(1.0)  # what it is does not matter
        addend.used = (1 << len(replica.model.parameters)) - 1
        addend.close()
        partial.used = addend.used
        partial.rows[group.rank] = [group.rank, 1.0, 16.0, 0.1, "", ""]
        reduction = Reduction(replica, group, own, [[r] for r in range(WORKERS)])
        reduction.finish()
        exchange = Exchange(replica, group, own, [f"w{r}" for r in range(WORKERS)])
        assert replica.apply(exchange.commit(0, reduction.norms)).applied
        exchange.gather()
        size = replica.model.space.size * 4

    room.all(step)
    return sum(room.bytes) / size / spec_batches(spec)


def spec_batches(spec: Any) -> int:
    return spec.strategy.local_steps if spec.strategy.name == "local_sgd" else 1


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
    sent = bytes_per_batch(strategy=LOCAL, optimizer=optimizer)
    assert sent == pytest.approx(lanes * 6 / STEPS, rel=0.05)

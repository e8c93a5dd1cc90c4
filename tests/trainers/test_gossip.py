"""Gossip among workers in one process: the mean is kept, and a convex problem is solved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.strategies.gossip import Gossip, Staying, consensus, hand_over
from elastrain.trainers.task import Task
from elastrain.trainers.training.replica import Replica

GRAPHS = pytest.mark.parametrize("graph", ["ring", "torus", "exponential"])
WAIT_S = 20.0
STEPS = 120


class Together:
    """The groups of `world` members that meet in memory, each in a thread of its own."""

    def __init__(self, world: int) -> None:
        self.world, self.barrier = world, threading.Barrier(world)
        self.table: dict[int, Any] = {}
        self.sent: set[tuple[int, int]] = set()  # (from, to) of what was not empty

    def meet(self, rank: int, brings: Any) -> list[Any]:
        self.table[rank] = brings
        self.barrier.wait(WAIT_S)
        found = [self.table[r] for r in range(self.world)]
        self.barrier.wait(WAIT_S)
        return found

    def run(self, member: Callable[[Group], Any]) -> list[Any]:
        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(member, [Member(self, rank) for rank in range(self.world)]))


class Member(Group):
    def __init__(self, together: Together, rank: int) -> None:
        super().__init__(rank, together.world)
        self.together = together

    def start_exchange(self, sends: Any, sizes: Any, dtype: torch.dtype, into: Tensor | None = None) -> Any:
        mine = [None if s is None else s.clone() for s in sends]
        self.together.sent |= {(self.rank, to) for to, s in enumerate(mine) if s is not None and s.numel()}

        def arrive() -> list[Tensor]:
            found = self.together.meet(self.rank, mine)
            come = [torch.empty(0) if f[self.rank] is None else f[self.rank] for f in found]
            assert [c.numel() for c in come] == list(sizes), "both sides have the same plan"
            return come

        return arrive

    def gather_json(self, entry: Any) -> list[Any]:
        return self.together.meet(self.rank, entry)


class Point(Task):
    """One vector."""

    def model(self) -> nn.Module:
        module = nn.Module()
        module.register_parameter("x", nn.Parameter(torch.zeros(130)))
        return module


def replica(world: int, **fields: Any) -> Replica:
    said = {"name": "x", "task": "a:B", "batch": {"size": world, "microbatch": 1}, "steps": 900}
    optimizer = {"name": "sgd", "lr": 0.1}
    spec = parse_spec({**said, "optimizer": optimizer, "workers": {"min": 1, "max": 1}, **fields})
    return Replica(spec, Point(), FlatModel(Point().model()), 10**6, 0)


def domains(world: int) -> list[Domain]:
    return [Domain(f"w{r}", f"g{r}", f"n{r}") for r in range(world)]


def begin(group: Group, **fields: Any) -> tuple[Replica, Ownership]:
    held = replica(group.world, **fields)
    own = Ownership.of(held.model.space, domains(group.world))
    held.begin(*Gossip("ring").keeps(own, group.rank))
    held.model.params[:130] = torch.randn(130, generator=torch.Generator().manual_seed(group.rank))
    return held, own


def step(held: Replica, group: Group, own: Ownership, graph: Any, gradient: Tensor) -> None:
    """One microbatch each, whose summed gradient is given."""
    partial = held.at_hand()
    addend = partial.gradients.open(group.rank, early=False, passed_on=None)
    addend.take(held.model.space.pieces[0], gradient * held.scale)
    addend.close()
    partial.used = 1
    partial.rows[group.rank] = [group.rank, 1.0, 1.0, 0.1, "ids", ""]
    mixing = Gossip(graph).reducer(held, group, own)([[r] for r in range(group.world)])
    mixing.finish()
    exchange = Staying(held, group, own, [d.worker for d in own.domains])
    held.apply(exchange.commit(0, mixing.norms))


def mean_of(points: list[Tensor]) -> Tensor:
    return torch.stack(points).double().mean(0)


@GRAPHS
@pytest.mark.parametrize("world", [1, 2, 3, 5, 8])
def test_mixing_keeps_the_mean_of_all_workers_and_only_neighbours_talk(graph: Any, world: int) -> None:
    together = Together(world)

    def member(group: Group) -> tuple[Tensor, Tensor]:
        held, own = begin(group)
        before = held.model.params.clone()
        step(held, group, own, graph, torch.zeros(130))
        return before, held.model.params.clone()

    moved = together.run(member)
    before, after = ([m[k] for m in moved] for k in (0, 1))
    assert torch.allclose(mean_of(before), mean_of(after), atol=1e-7)
    spread = [torch.stack(x).double().var(0, correction=0).sum() for x in (before, after)]
    assert world == 1 or spread[1] < spread[0]
    most = {"ring": 2, "torus": 4, "exponential": 3}[graph]
    assert all(sum(a == r for a, _ in together.sent) <= most for r in range(world))


@GRAPHS
def test_every_worker_comes_to_the_optimum_of_the_sum_of_convex_functions(graph: Any) -> None:
    world = 4
    dice = torch.Generator().manual_seed(9)
    curvature = 0.5 + torch.rand(world, 130, generator=dice)  # f_i(x) = sum_k a_ik (x_k - b_ik)^2 / 2
    center = torch.randn(world, 130, generator=dice)
    optimum = (curvature * center).sum(0) / curvature.sum(0)

    def member(group: Group) -> Tensor:
        decay = {"schedule": {"decay": "cosine"}, "optimizer": {"name": "sgd", "lr": 0.3}, "steps": STEPS}
        held, own = begin(group, **decay)
        for _ in range(STEPS):
            x = held.model.params[:130]
            step(held, group, own, graph, curvature[group.rank] * (x - center[group.rank]))
        return held.model.params[:130].clone()

    for found in Together(world).run(member):
        far = (found - optimum).norm() / optimum.norm()
        assert far < 0.03, "as near as the last rates let it come"
        assert all((found - alone).norm() / optimum.norm() > 0.5 for alone in center), "nobody's own optimum"


@GRAPHS
def test_the_mean_of_all_workers_makes_the_step_of_the_mean_gradient(graph: Any) -> None:
    world = 4

    def member(group: Group) -> tuple[Tensor, Tensor]:
        held, own = begin(group)
        before = held.model.params[:130].clone()
        step(held, group, own, graph, torch.full((130,), float(group.rank)))
        return before, held.model.params[:130].clone()

    moved = Together(world).run(member)
    change = mean_of([m[1] for m in moved]) - mean_of([m[0] for m in moved])
    assert torch.allclose(change, torch.full((130,), -0.1 * 1.5, dtype=torch.float64), atol=1e-6)


def test_for_a_while_everybody_is_the_mean_and_then_itself_again() -> None:
    world = 3

    def member(group: Group) -> tuple[Tensor, Tensor, float, bool, Tensor]:
        held, own = begin(group, optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
        state = held.states.read((0, held.model.space.blocks))["momentum_buffer"]
        state.fill_(float(group.rank))
        before = held.model.params.clone()
        with consensus(held, group, own) as apart:
            mean = held.model.params.clone()
            chunks = [held.states.read(c)["momentum_buffer"] for c in own.owned(group.rank) if c[0] < c[1]]
        same = torch.equal(held.model.params, before)
        assert bool((held.states.read((0, held.model.space.blocks))["momentum_buffer"] == group.rank).all())
        return before, mean, apart, same, torch.cat(chunks) if chunks else torch.empty(0)

    found = Together(world).run(member)
    mean = mean_of([f[0] for f in found]).float()
    assert all(torch.equal(f[1], mean) and f[3] for f in found)
    assert all(bool((f[4] == 1.0).all()) for f in found), "of the states too"
    far = [float((f[0].double() - mean.double()).square().sum()) for f in found]
    assert [f[2] for f in found] == pytest.approx([(sum(far) / world) ** 0.5] * world)


def test_a_joiner_begins_between_its_neighbours_and_nobody_else_moves() -> None:
    world, joiner = 4, 2

    def member(group: Group) -> tuple[Tensor, Tensor, Tensor]:
        held, own = begin(group, optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
        held.states.read((0, held.model.space.blocks))["momentum_buffer"].fill_(float(group.rank))
        before = held.model.params.clone()
        if group.rank == joiner:
            held.states.pieces = {}
            held.model.params.zero_()
        members = tuple({"worker": d.worker, "group": d.group, "node": d.node} for d in own.domains)
        whole = {d.worker: [(0, held.model.space.blocks)] for d in own.domains if d.worker != "w2"}
        opening = Opening(2, members, 5, {}, None, whole, tuple(whole), {}, None, 0)
        hand_over(held, opening, group, "ring")
        return before, held.model.params, held.states.read((0, held.model.space.blocks))["momentum_buffer"]

    found = Together(world).run(member)
    assert torch.allclose(found[joiner][1], (found[1][0] + found[3][0]) / 2)
    assert bool((found[joiner][2] == 2.0).all()), "as its neighbours w1 and w3: (1 + 3) / 2"
    assert all(torch.equal(found[r][0], found[r][1]) for r in (0, 1, 3))

"""Graphs of gossip: whatever the number of workers, mixing keeps the mean and brings all together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elastrain.trainers.numerics.graphs import grid, heard, hearers, mixing_matrix

GRAPHS = pytest.mark.parametrize("graph", ["ring", "torus", "exponential"])
WORLDS = pytest.mark.parametrize("world", range(1, 17))


def matrix(graph: Any, world: int) -> torch.Tensor:
    return torch.tensor(mixing_matrix(graph, world), dtype=torch.float64)


@GRAPHS
@WORLDS
def test_every_mixing_matrix_is_doubly_stochastic(graph: Any, world: int) -> None:
    w = matrix(graph, world)
    assert (w >= 0).all()
    assert torch.allclose(w.sum(0), torch.ones(world, dtype=torch.float64), atol=1e-15, rtol=0)
    assert torch.allclose(w.sum(1), torch.ones(world, dtype=torch.float64), atol=1e-15, rtol=0)


@GRAPHS
@WORLDS
def test_mixing_keeps_the_mean_and_brings_all_together(graph: Any, world: int) -> None:
    generator = torch.Generator().manual_seed(world)
    x = torch.randn(world, 5, generator=generator, dtype=torch.float64)
    mean, w = x.mean(0), matrix(graph, world)
    for _ in range(400):
        x = w @ x
        assert torch.allclose(x.mean(0), mean, atol=1e-12)
    assert torch.allclose(x, mean.expand_as(x), atol=1e-6)


@GRAPHS
@WORLDS
def test_who_is_heard_and_who_hears_are_the_same_edges(graph: Any, world: int) -> None:
    told = {(sender, hearer) for sender in range(world) for hearer in hearers(graph, world, sender)}
    taken = {(o, rank) for rank in range(world) for o in heard(graph, world, rank) if o != rank}
    assert told == taken


@GRAPHS
def test_nobody_hears_more_than_its_graph_says(graph: Any) -> None:
    most = {"ring": 2, "torus": 4, "exponential": 4}[graph]
    assert max(len(heard(graph, world, 0)) - 1 for world in range(1, 17)) == most


def test_one_worker_alone_hears_itself() -> None:
    assert heard("ring", 1, 0) == {0: 1.0} and hearers("exponential", 1, 0) == []


def test_a_torus_is_as_square_as_can_be() -> None:
    assert [grid(n) for n in (1, 6, 7, 12, 16)] == [(1, 1), (2, 3), (1, 7), (3, 4), (4, 4)]
    assert sorted(heard("torus", 16, 5)) == [1, 4, 5, 6, 9]


def test_a_graph_that_is_rebuilt_for_one_worker_less_is_a_graph_of_that_number() -> None:
    assert sorted(heard("ring", 4, 0)) == [0, 1, 3] and sorted(heard("ring", 3, 0)) == [0, 1, 2]

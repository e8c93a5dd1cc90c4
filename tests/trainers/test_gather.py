"""Parameters on their way from their owners to everybody: a few buckets at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elastrain.trainers.exchange.collectives import AT_ONCE, Group
from elastrain.trainers.numerics.chunks import Domain, FlatSpace, Ownership
from elastrain.trainers.training.step import Exchange
from trainers.room import Room

SPACE = FlatSpace.of([(name, (128,)) for name in "abcde"])


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastrain.trainers.numerics.chunks.BUCKET", 128)


@pytest.mark.parametrize("world", [3, 4, 7])
@pytest.mark.parametrize("gathered", [0, 2])
def test_everybody_has_all_parameters_and_never_more_than_a_few_buckets_beside_them(
    world: int, gathered: int
) -> None:
    own = Ownership.of(SPACE, [Domain(f"w{r}", f"w{r}", f"w{r}") for r in range(world)])
    wanted = [torch.randn(SPACE.size) for _ in range(1 + gathered)]
    replicas: list[Any] = []
    for rank in range(world):
        has = [torch.zeros(SPACE.size) for _ in wanted]
        for chunk in own.held(rank):
            for vector, value in zip(has, wanted, strict=True):
                vector[SPACE.elements(chunk)] = value[SPACE.elements(chunk)]
        replicas.append(
            SimpleNamespace(
                model=SimpleNamespace(params=has[0]),
                gathered=dict(enumerate(has[1:])),
                down=None,
                whole=False,
                spread=lambda: None,
            )
        )
    most = [0] * world

    def gather(group: Group) -> None:
        inner, under_way = group.start_exchange, [0]

        def start_exchange(*what: Any) -> Any:
            arrival = inner(*what)
            under_way[0] += 1
            most[group.rank] = max(most[group.rank], under_way[0])

            def arrive() -> Any:
                under_way[0] -= 1
                return arrival()

            return arrive

        group.start_exchange = start_exchange  # type: ignore[method-assign]
        arrive = Exchange(replicas[group.rank], group, own, []).start_gather()
        assert not replicas[group.rank].whole
        arrive()

    Room(world).all(gather)
    for replica in replicas:
        assert replica.whole
        for vector, value in zip([replica.model.params, *replica.gathered.values()], wanted, strict=True):
            assert torch.equal(vector, value)
    assert most == [AT_ONCE] * world and len(SPACE.buckets()) > AT_ONCE

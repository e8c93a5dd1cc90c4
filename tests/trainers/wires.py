"""All members of a generation in one process, each in a thread: they exchange for real, over no network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Group

T = TypeVar("T")
PATIENCE_S = 20.0


class Wires:
    """What is under way; `bytes` counts what left each rank for another."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.bytes = [0] * world
        self.box: dict[tuple[int, int, int], Tensor] = {}  # (number of the exchange, from, to)
        self.changed = threading.Condition()

    def members(self) -> list[Member]:
        return [Member(self, rank) for rank in range(self.world)]


class Member(Group):
    def __init__(self, wires: Wires, rank: int) -> None:
        super().__init__(rank, wires.world)
        self.wires, self.number = wires, 0

    def start_exchange(
        self,
        sends: Sequence[Tensor | None],
        sizes: Sequence[int],
        dtype: torch.dtype,
        into: Tensor | None = None,
    ) -> Any:
        number, self.number = self.number, self.number + 1
        with self.wires.changed:
            for to, tensor in enumerate(sends):
                sent = torch.empty(0, dtype=dtype) if tensor is None else tensor.clone()
                assert sent.dtype == dtype
                self.wires.box[number, self.rank, to] = sent
                self.wires.bytes[self.rank] += sent.numel() * sent.element_size() * (to != self.rank)
            self.wires.changed.notify_all()
        return _Arrival(self, number, list(sizes))


class _Arrival:
    def __init__(self, member: Member, number: int, sizes: list[int]) -> None:
        self.member, self.number, self.sizes = member, number, sizes

    def ready(self) -> bool:
        return False

    def __call__(self) -> list[Tensor]:
        wires, me = self.member.wires, self.member.rank
        keys = [(self.number, source, me) for source in range(wires.world)]
        with wires.changed:
            assert wires.changed.wait_for(lambda: all(k in wires.box for k in keys), PATIENCE_S)
            came = [wires.box.pop(k) for k in keys]
        assert [t.numel() for t in came] == self.sizes, f"exchange {self.number} to {me}"
        return list(torch.cat(came).split(self.sizes))


def together(acts: Sequence[Callable[[], T]]) -> list[T]:
    """What each of them returns, all running at the same time."""
    with ThreadPoolExecutor(len(acts)) as pool:
        return [f.result() for f in [pool.submit(act) for act in acts]]

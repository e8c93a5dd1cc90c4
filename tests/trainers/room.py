"""A group whose members are threads of this process: what they exchange is real, and is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import Arrival, Group

PATIENCE_S = 30.0


class Room:
    """Where the members meet. `bytes` is what each of them sent to others in exchanges."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.bytes = [0] * world
        self._said: list[list[Any]] = [[] for _ in range(world)]  # by rank, in the order of operations
        self._news = threading.Condition()

    def member(self, rank: int) -> Group:
        return Member(self, rank)

    def all(self, life: Callable[[Group], None]) -> None:
        """Every member lives its life; what one of them raises is raised here."""
        errors: list[BaseException] = []

        def live(rank: int) -> None:
            try:
                life(self.member(rank))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=live, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def say(self, rank: int, what: Any) -> Callable[[], list[Any]]:
        """Returns a call that waits for what the others say at the same turn."""
        with self._news:
            turn = len(self._said[rank])
            self._said[rank].append(what)
            self._news.notify_all()

        def hear() -> list[Any]:
            with self._news:
                assert self._news.wait_for(lambda: all(len(s) > turn for s in self._said), PATIENCE_S)
            return [said[turn] for said in self._said]

        return hear


class Member(Group):
    def __init__(self, room: Room, rank: int) -> None:
        super().__init__(rank, room.world)
        self.room = room

    def start_exchange(self, sends: Any, sizes: Any, dtype: torch.dtype, into: Tensor | None = None) -> Any:
        copies = [torch.empty(0, dtype=dtype) if s is None else s.clone() for s in sends]
        others = [c for peer, c in enumerate(copies) if peer != self.rank]
        self.room.bytes[self.rank] += sum(c.numel() * c.element_size() for c in others)
        return Coming(self.room.say(self.rank, copies), self.rank, list(sizes))

    def gather_json(self, entry: Any) -> list[Any]:
        return self.room.say(self.rank, entry)()


class Coming(Arrival):
    def __init__(self, hear: Callable[[], list[list[Tensor]]], rank: int, sizes: list[int]) -> None:
        self.hear, self.rank, self.sizes = hear, rank, sizes

    def ready(self) -> bool:
        return False

    def __call__(self) -> list[Tensor]:
        come = [sent[self.rank] for sent in self.hear()]
        assert [len(c) for c in come] == self.sizes
        return come

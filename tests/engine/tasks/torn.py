"""A server that leaves its generation at the worst moment: a push is applied, nothing of it went out yet."""

from __future__ import annotations

import time
from typing import Any

from elastrain.trainers.exchange.collectives import Broken
from elastrain.trainers.strategies.ledger import Task as Dealt
from elastrain.trainers.strategies.served import ServedReplica
from elastrain.trainers.training.step import Exchange
from engine.tasks.probe import Quadratic


class Torn(Quadratic):
    """Once, at version `at` of the parameters, when the push that comes next ([step, version]) lies ready."""

    def __init__(self, rows: list[Any], at: int, ready: list[int], **more: Any) -> None:
        super().__init__(rows, **more)
        self.at, self.ready = at, Dealt(*ready)
        self.plain, Exchange.gather = Exchange.gather, self._hook()  # type: ignore[method-assign]

    def _hook(self) -> Any:
        def gather(exchange: Exchange) -> None:
            if isinstance(exchange.replica, ServedReplica) and exchange.replica.step == self.at:
                self.at = -1
                while self.ready not in exchange.replica.hub.shelf.parts:
                    time.sleep(0.002)
                print("torn", flush=True)
                raise Broken("the line to another server broke")
            self.plain(exchange)

        return gather

"""Chaos with lines of its own: beside what happens to workers, lines are cut, mended and narrowed."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from elastrain.trainers.coordination.attempt import Outcome
from elastrain.trainers.membership.roster import State
from engine.chaos import HANG_S, Chaos, Strike
from engine.netns import DRIVER, ApartLauncher, Network, Refused


@dataclass
class NetChaos(Chaos):
    """As Chaos, every worker in a network namespace of its own."""

    async def _run(self) -> Outcome:
        with Network() as self.network:
            self.host = self.network.addresses[DRIVER]
            self.launch = partial(ApartLauncher, network=self.network)
            return await super()._run()

    def strikes(self) -> dict[Strike, int]:
        lines: dict[Strike, int] = {
            self._cut_until_evicted: 10,
            self._blink: 10,
            self._part: 8,
            self._cut_the_driver: 2,
            self._narrow: 3,
        }
        return {**super().strikes(), **lines}

    def _cut_until_evicted(self, draw: random.Random) -> None:
        """The line may come back before the kill."""
        self.launcher.kill_after_s = draw.choice([0.0, 1.0, 3.0])  # type: ignore[attr-defined]
        for worker in self._members(draw)[:1]:
            self._beside(self._away(worker, None, HANG_S, "cuts"))

    def _blink(self, draw: random.Random) -> None:
        for worker in self._members(draw)[:1]:
            self._beside(self._away(worker, None, draw.uniform(0.1, 1.5), "blinks"))

    def _part(self, draw: random.Random) -> None:
        """Two workers that reach the driver, and not each other."""
        if len(pair := self._members(draw)[:2]) == 2:
            self._beside(self._away(pair[0], pair[1], HANG_S, "partings"))

    def _cut_the_driver(self, draw: random.Random) -> None:
        self._beside(self._away(DRIVER, None, draw.uniform(0.2, 3.0), "driver cuts"))

    def _narrow(self, draw: random.Random) -> None:
        for worker in self._members(draw)[:1]:
            with contextlib.suppress(Refused):  # it is narrow already
                self.network.slow(worker, rate=f"{draw.choice([20, 50])}mbit", delay_ms=draw.choice([5, 20]))
                self.counts["slow lines"] += 1

    async def _away(self, one: str, other: str | None, at_most_s: float, what: str) -> None:
        try:
            self.network.cut(one, other)
        except Refused:  # it is cut already, and mended by whoever did that
            return
        self.counts[what] += 1
        workers = self.attempt.machine.roster.workers
        ends = [workers[w] for w in (one, other) if w in workers]
        await self._until(lambda: any(w.state is State.LOST for w in ends), at_most_s)
        self.network.mend(one, other)

    def numbers(self) -> dict[str, Any]:
        lines = ("cuts", "blinks", "partings", "driver cuts", "slow lines")
        return {**super().numbers(), **{name: self.counts[name] for name in lines}}

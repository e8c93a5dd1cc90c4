"""Kills and resizes at random moments, not only at steps: whatever is going on then is hit."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from elastrain.trainers.attempt import Outcome
from engine.harness import Run, kill, run, toy

pytestmark = pytest.mark.engine


@dataclass
class Chaos(Run):
    """Every now and then a worker is killed or the number of workers changes, by a seeded draw."""

    seed: int = 0
    kills: int = field(default=0, init=False)

    async def _run(self) -> Outcome:
        havoc = asyncio.ensure_future(self._havoc(random.Random(self.seed)))
        try:
            return await super()._run()
        finally:
            havoc.cancel()

    async def _havoc(self, draw: random.Random) -> None:
        while True:
            await asyncio.sleep(draw.uniform(0.05, 0.9))
            members = self.active() if hasattr(self, "attempt") else []
            if len(members) > 1 and draw.random() < 0.6:
                kill(draw.randrange(len(members)))(self)
                self.kills += 1
            elif members:
                self.attempt.scale(1, draw.randint(1, 4))


@pytest.mark.parametrize("seed", [3, 7, 8])
def test_a_job_under_fire_ends_with_the_same_bits(tmp_path: Path, seed: int) -> None:
    spec = toy(steps=120)
    alone = run(tmp_path / "one", spec)
    chaos = Chaos(tmp_path / "many", spec, (1, 4), seed=seed).go()
    assert chaos.digests == alone.digests
    assert chaos.kills > 0
    if not chaos.events("rollback"):
        assert chaos.steps() == list(range(1, 121))

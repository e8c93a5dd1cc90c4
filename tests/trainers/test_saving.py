"""Checkpoints whose parts do not all come."""

import asyncio
from typing import Any

from elastrain.trainers import messages as m
from elastrain.trainers import saving
from elastrain.trainers.checkpoints import Checkpoints
from elastrain.trainers.progress import Progress
from elastrain.trainers.saving import Saving
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import open_storage

PART = {"step": 10, "generation": 1, "rank": 0, "world": 2, "part": None, "model": None, "digests": []}


def test_a_part_that_comes_after_its_peer_was_lost_does_not_wait_for_ever(monkeypatch: Any) -> None:
    monkeypatch.setattr(saving, "RETRY_S", 0.0)
    said: list[Any] = []
    wanted: list[m.Event] = []

    async def story() -> None:
        spec = parse_spec({"name": "x", "task": "a:B", "steps": 20})
        checkpoints = Checkpoints(open_storage("memory://"), "job", 1, spec, said.append)
        keeper = Saving(checkpoints, Progress(), wanted.append, None)
        keeper.lost("w1")  # nothing of this checkpoint is known yet
        keeper.part(PART, ("w0", "w1"), gone={"w1"})
        await asyncio.sleep(0.01)
        assert not checkpoints.pending

    asyncio.run(story())
    assert [f["type"] for f in said] == ["checkpoint.failed"]
    assert wanted == [m.CheckpointWanted("checkpoint 10 failed")]

"""Checkpoints whose parts do not all come."""

import asyncio
from typing import Any

from elastrain.trainers.checkpoints import saving
from elastrain.trainers.checkpoints.manifests import Checkpoints
from elastrain.trainers.checkpoints.saving import Saving
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.progress import Progress
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


def test_a_request_is_acknowledged_by_the_first_checkpoint_that_holds_what_there_was_when_it_was_made(
    monkeypatch: Any,
) -> None:
    said: list[Any] = []
    progress = Progress(step=10)

    def feed(event: m.Event) -> None:
        match event:
            case m.CheckpointWanted():
                progress.checkpoint_wanted = progress.step
            case m.CheckpointSaved(step):
                progress.saved(step)

    async def story() -> None:
        spec = parse_spec({"name": "x", "task": "a:B", "steps": 20})
        checkpoints = Checkpoints(open_storage("memory://"), "job", 1, spec, said.append)
        monkeypatch.setattr(checkpoints, "save", lambda pending: None)
        keeper = Saving(checkpoints, progress, feed, None)

        async def saved(step: int) -> None:
            keeper.part({**PART, "step": step}, ("w0",), gone=set())
            await keeper.close()

        await saved(9)
        keeper.ask(1)
        await saved(9)  # of before the request, and uploaded slowly
        progress.step = 12
        keeper.ask(2)
        await saved(11)
        assert said == []
        await saved(12)
        await saved(13)

    asyncio.run(story())
    assert [(fact["kind"], fact["number"], fact["step"]) for fact in said] == [("checkpoint_done", 2, 12)]

"""An attempt that cannot go on says so: it ends, and never waits for ever."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from elastrain.trainers.coordination.attempt import Attempt
from elastrain.trainers.launching.launcher import GroupEnded, GroupStart, WorkerStart
from elastrain.trainers.membership.messages import Notice
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import open_storage


class Puppets:
    """A launcher whose workers are played by the test."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[WorkerStart] = asyncio.Queue()
        self._groups: list[str] = []

    def start(self, group: GroupStart) -> None:
        self._groups.append(group.group)
        for worker in group.workers:
            self.started.put_nowait(worker)

    def stop(self, group: str, *, kill: bool) -> None:
        pass

    def poll(self) -> list[GroupEnded | Notice]:
        return []

    def close(self) -> None:
        pass


async def register(start: WorkerStart) -> None:
    """Be a worker for a moment."""
    headers = {"Authorization": f"Bearer {start.key}"}
    address = f"{start.coordinator}/?worker={start.worker}"
    async with connect(address, additional_headers=headers, proxy=None) as line:
        said = {
            "kind": "register",
            "group": start.group,
            "node": "n0",
            "pid": 1,
            "started": 0.0,
            "address": {},
        }
        await line.send(json.dumps(said))
        await line.wait_closed()


@pytest.mark.parametrize("kind", ["worker.started", "worker.lost"])
def test_an_error_while_a_workers_word_was_taken_in_ended_the_attempt_and_not_a_connection(
    tmp_path: Path, kind: str
) -> None:
    def sink(fact: dict[str, Any]) -> None:
        if fact.get("type") == kind:
            raise RuntimeError("the sink is full")

    async def story() -> None:
        puppets = Puppets()
        spec = parse_spec(
            {
                "name": "a",
                "task": "a:B",
                "optimizer": {"name": "sgd", "lr": 1.0},
                "batch": {"size": 8, "microbatch": 1},
                "steps": 1,
            }
        )
        storage = open_storage(tmp_path.as_uri())
        attempt = Attempt(spec=spec, job="j", attempt=1, storage=storage, launcher=puppets, sink=sink)
        running = asyncio.ensure_future(attempt.run())
        worker = asyncio.ensure_future(register(await puppets.started.get()))
        if kind == "worker.lost":
            await asyncio.sleep(0)
            while not attempt.machine.roster.workers["w0"].connected:
                await asyncio.sleep(0.001)
            worker.cancel()
        with pytest.raises(RuntimeError, match="the sink is full"):
            await asyncio.wait_for(running, 20)
        worker.cancel()
        await asyncio.wait([worker])

    asyncio.run(story())

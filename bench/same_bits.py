"""Does the result depend on the workers? Trains one spec several times on local processes.

    python bench/same_bits.py [spec.yaml]

With 1, 2, 3 and 4 workers, then with a worker killed at a random step, one joining and one leaving. The last
line is one JSON object: {"runs", "equal", "params_digest", "state_digest"}.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from elastrain.trainers.coordination.attempt import Attempt
from elastrain.trainers.launching.local_launcher import LocalLauncher
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import open_storage

DIGITS: dict[str, Any] = {
    "name": "same-bits",
    "task": "elastrain.trainers.tasks.digits:Digits",
    "task_args": {"channels": 8, "hidden": 32, "dropout": 0.2, "batch_norm": True},
    "optimizer": {"name": "adam", "lr": 2.0e-3},
    "batch": {"size": 256, "microbatch": 32},
    "epochs": 15,
    "workers": {"min": 1, "max": 4},
}
Deed = Callable[["Story"], None]


@dataclass
class Story:
    """One run: how many workers begin, and what happens at which step."""

    name: str
    workers: int
    deeds: list[tuple[int, Deed]] = field(default_factory=list)

    async def tell(self, spec: dict[str, Any], folder: Path) -> tuple[str, str]:
        """-> (params_digest, state_digest)"""
        self.launcher = LocalLauncher(folder)
        self.attempt = Attempt(
            spec=parse_spec(spec),
            job="bits",
            attempt=1,
            storage=open_storage((folder / "objects").as_uri()),
            launcher=self.launcher,
            sink=self._hear,
            workers=(self.workers, self.workers),
        )
        outcome = await self.attempt.run()
        if outcome.outcome != "succeeded":
            raise SystemExit(f"{self.name}: {outcome.outcome}: {outcome.message}")
        newest = self.attempt.checkpoints.newest()
        assert newest is not None
        return newest[1]["params_digest"], newest[1]["state_digest"]

    def _hear(self, fact: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        if fact["kind"] == "generation" and fact["generation"] == 1:
            loop.call_soon(self.attempt.scale, 1, self.workers)  # from now on go on with any number
        if fact["kind"] == "metric" and "loss" in fact["values"]:
            for at, deed in [d for d in self.deeds if fact["step"] >= d[0]]:
                self.deeds.remove((at, deed))
                loop.call_soon(deed, self)


def kill(story: Story) -> None:
    members = story.attempt.machine.members
    os.kill(story.launcher.pid(members[len(members) // 2]), signal.SIGKILL)


def scale(target: int) -> Deed:
    return lambda story: story.attempt.scale(1, target)


def main() -> int:
    spec = yaml.safe_load(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else DIGITS
    at = random.randint(10, 60)
    stories = [Story(f"{n} workers" if n > 1 else "1 worker", n) for n in (1, 2, 3, 4)]
    stories += [
        Story(f"3 workers, one killed at step {at}", 3, [(at, kill)]),
        Story("2 workers, a third joins at step 20", 2, [(20, scale(3))]),
        Story("3 workers, one leaves at step 30", 3, [(30, scale(2))]),
    ]
    found = []
    for story in stories:
        with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
            found.append(asyncio.run(story.tell(spec, Path(folder))))
        print(f"{story.name:40} parameters {found[-1][0][:16]}  state {found[-1][1][:16]}", flush=True)
    equal = len(set(found)) == 1
    last = {"runs": len(found), "equal": equal, "params_digest": found[0][0], "state_digest": found[0][1]}
    print(json.dumps(last))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())

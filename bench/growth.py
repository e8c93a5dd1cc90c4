"""What coordination costs as a job grows: the driver's part for 1 to 1,000 workers, the start of 1 to 32.

    python bench/growth.py [--quick] [--out FOLDER]

First part: a real attempt (machine, coordinator, tally), and simulated workers that hold real connections and
say everything that real ones say (rig/crowd.py); a step takes 0.2 s. Measured is the processor time of the
driver's process: for a step, for a join, a leave and a death. It is spent beside the steps, nobody waits for
it, so the driver has to keep up (half a core at 1,000 workers) and must not be felt beside training (2 % of
a core at 10); and no change of members may cost it more than half a second, or a member more than 60 KiB.

Second part: real local workers from nothing to the first accepted step of a task that costs nothing; the fork
server has imported torch. They share this machine's cores (two of them count), so the figure is what each
further one adds: 0.3 s of one core at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastrain.trainers.coordination.attempt import Attempt
from elastrain.trainers.launching.launcher import GroupEnded, GroupStart, Launcher
from elastrain.trainers.launching.local_launcher import LocalLauncher
from elastrain.trainers.membership.machine import Phase
from elastrain.trainers.membership.messages import Json, Notice
from elastrain.trainers.membership.wire import encode
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import open_storage
from rig.analysis import Target
from rig.report import curves, finish, table

STEP_S = 0.2
PARAMETERS = 1_000_000_000  # of the simulated model: 15,259 blocks, what a large job has
CROWDS, QUICK_CROWDS = (1, 3, 10, 32, 100, 316, 1000), (1, 10, 100, 1000)
STARTS, QUICK_STARTS = (1, 2, 4, 8, 16, 32), (1, 4, 32)
LIMIT_S = 300.0


class CrowdLauncher:
    """Starts simulated workers, all in one process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "rig.crowd", str(STEP_S), str(PARAMETERS)]
        here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        pipe = subprocess.PIPE
        self._crowd = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=here)
        self._ended: queue.Queue[GroupEnded | Notice] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._crowd.stdout or ():
            group, worker = json.loads(line)
            self._ended.put(GroupEnded(group, {worker: "simulated"}))

    def _order(self, *words: Any) -> None:
        assert self._crowd.stdin is not None
        self._crowd.stdin.write(json.dumps(words) + "\n")
        self._crowd.stdin.flush()

    def start(self, group: GroupStart) -> None:
        for worker in group.workers:
            self._order("start", worker.to_dict())

    def stop(self, group: str, *, kill: bool) -> None:
        if kill:
            self._order("kill", group.replace("g", "w"))  # groups of one

    def kill(self, worker: str) -> None:
        self._order("kill", worker)

    def poll(self) -> list[GroupEnded | Notice]:
        found = []
        while not self._ended.empty():
            found.append(self._ended.get())
        return found

    def close(self) -> None:
        self._crowd.kill()
        self._crowd.wait()


@dataclass
class Job:
    """One attempt, and what it says."""

    launcher: Launcher
    folder: Path
    spec: Json
    workers: int
    facts: list[Json] = field(default_factory=list)

    async def run(self, story: Callable[[Job], Any]) -> Any:
        self.attempt = Attempt(
            spec=parse_spec(self.spec),
            job="growth",
            attempt=1,
            storage=open_storage((self.folder / "objects").as_uri()),
            launcher=self.launcher,
            sink=self.facts.append,
            workers=(self.workers, self.workers),
        )
        running = asyncio.ensure_future(self.attempt.run())
        try:
            return await asyncio.wait_for(story(self), LIMIT_S)
        finally:
            self.attempt.finish("cancelled")
            await running

    async def until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            await asyncio.sleep(0.05)  # it is this process that is measured

    @property
    def step(self) -> int:
        return self.attempt.machine.progress.step

    async def formed(self, generation: int) -> None:
        machine = self.attempt.machine
        await self.until(lambda: machine.generation.number >= generation and machine.phase is Phase.STEADY)


# ---- the driver of many ------------------------------------------------------------------------


def crowd(workers: int, steps: int) -> Json:
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        batch, limits = {"size": 1024, "microbatch": 1}, {"min": 1, "max": 1024}
        spec = {"name": "crowd", "task": "none:None", "steps": 1_000_000, "batch": batch, "workers": limits}
        job = Job(CrowdLauncher(), Path(folder), {**spec, "checkpoint": {"every_steps": None}}, workers)
        row: Json = asyncio.run(job.run(lambda job: changes(job, steps)))
        return {"workers": workers, **row}


async def changes(job: Job, steps: int) -> Json:
    """Processor time of this process, in ms, for each kind of change, until everyone trains again."""
    sizes: list[int] = []
    tell = job.attempt.coordinator.tell

    def listen(workers: Any, message: Json) -> None:
        if message["kind"] == "open":
            sizes.append(len(encode(message)))
        tell(workers, message)

    await job.formed(1)
    at = job.step
    await job.until(lambda: job.step >= at + 2)
    at, began, cpu = job.step, time.monotonic(), time.process_time()
    await job.until(lambda: job.step >= at + steps)
    passed = time.monotonic() - began
    row: Json = {
        "step_ms": 1e3 * (time.process_time() - cpu) / steps,
        "core": (time.process_time() - cpu) / passed,
    }
    job.attempt.coordinator.tell = listen  # type: ignore[method-assign]
    many = job.workers
    row["join_ms"] = await cost(job, lambda: job.attempt.scale(1, many + 1), many + 1)
    row["leave_ms"] = await cost(job, lambda: job.attempt.scale(1, many), many)
    if many > 1:
        machine, launcher = job.attempt.machine, job.launcher
        assert isinstance(launcher, CrowdLauncher)
        await job.until(lambda: machine.generation.committed)
        row["death_ms"] = await cost(job, lambda: launcher.kill(machine.members[many // 2]), many - 1)
    row["opening_kib"] = max(sizes) / 1024
    return row


async def cost(job: Job, change: Callable[[], None], members: int) -> float:
    """ms of processor time until as many members train. What steps use meanwhile is in it."""
    machine = job.attempt.machine
    cpu, generation = time.process_time(), machine.generation.number
    change()
    await job.until(
        lambda: (
            machine.generation.number > generation
            and machine.phase is Phase.STEADY
            and len(machine.members) == members
        )
    )
    return 1e3 * (time.process_time() - cpu)


# ---- real workers start ------------------------------------------------------------------------


def start(workers: int) -> Json:
    """Seconds from nothing to the first accepted step; the fork server has imported torch already."""
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        batch, limits = {"size": 256, "microbatch": 8}, {"min": 1, "max": 32}
        spec = {
            "name": "start",
            "task": "rig.tiny:Tiny",
            "steps": 1_000_000,
            "batch": batch,
            "workers": limits,
        }
        job = Job(LocalLauncher(Path(folder)), Path(folder), spec, workers)
        began = time.monotonic()

        async def first_step(job: Job) -> float:
            await job.until(lambda: job.step >= 1)
            return time.monotonic() - began

        return {"workers": workers, "first_step_s": asyncio.run(job.run(first_step))}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes: about two minutes")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="for the plot")
    chosen = parser.parse_args()
    steps = 5 if chosen.quick else 20
    crowds = []
    for workers in QUICK_CROWDS if chosen.quick else CROWDS:
        crowds.append(crowd(workers, steps))
        print(f"{workers} simulated workers: {crowds[-1]['step_ms']:.2f} ms a step", flush=True)
    start(1)  # the fork server imports torch
    starts = [start(workers) for workers in (QUICK_STARTS if chosen.quick else STARTS)]
    return report(crowds, starts, chosen.out)


def report(crowds: list[Json], starts: list[Json], out: Path) -> int:
    names = ("step_ms", "core", "join_ms", "leave_ms", "death_ms", "opening_kib")
    heads = ("simulated workers", "ms a step", "of a core", "a join", "a leave", "a death", "KiB a member")
    print(table(heads, [[row["workers"], *(row.get(n) for n in names)] for row in crowds]))
    one, most = starts[0], starts[-1]
    cores = min(os.cpu_count() or 1, 2)
    each = (most["first_step_s"] - one["first_step_s"]) / (most["workers"] - 1) * cores
    print()
    print(
        table(("local workers", "first step after, s"), [[r["workers"], r["first_step_s"]] for r in starts])
    )
    lines = {
        n.removesuffix("_ms"): {r["workers"]: r.get(n) for r in crowds} for n in names if n.endswith("_ms")
    }
    curves(out / "growth.svg", "Processor time of the driver", "workers", "ms", lines)
    by = {row["workers"]: row for row in crowds}
    largest = max(by)
    change = max(by[largest][f"{kind}_ms"] for kind in ("join", "leave", "death"))
    figures = {
        "workers": largest,
        "driver_step_ms": by[largest]["step_ms"],
        "driver_core": by[largest]["core"],
        "driver_core_at_10": by[10]["core"],
        "change_ms": change,
        "opening_kib": by[largest]["opening_kib"],
        "start_workers": most["workers"],
        "start_s": most["first_step_s"],
        "start_ratio": most["first_step_s"] / one["first_step_s"],
        "start_core_s_per_worker": each,
    }
    targets = [
        Target(f"the driver's share of a core at {largest} workers", by[largest]["core"], 0.5),
        Target("the driver's share of a core at 10 workers", by[10]["core"], 0.02),
        Target(f"the driver's ms for a change of members at {largest} workers", change, 500.0),
        Target(f"an opening in KiB at {largest} workers", by[largest]["opening_kib"], 60.0),
        Target("core seconds that a further local worker adds to the start", each, 0.3),
    ]
    return finish(figures, targets)


if __name__ == "__main__":
    sys.exit(main())

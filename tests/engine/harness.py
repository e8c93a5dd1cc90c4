"""Running attempts on real local processes, with faults at chosen moments.

run = start(spec, workers=2)
run.at_step(20, run.kill(1))
result = run.finish()
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from elastrain.trainers.coordination.attempt import Attempt, Outcome
from elastrain.trainers.launching.local_launcher import LocalLauncher
from elastrain.trainers.membership.roster import State
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import open_storage
from engine.rough_launcher import RoughLauncher

Fault = Callable[["Run"], None]


def toy(**fields: Any) -> dict[str, Any]:
    """A spec of the toy task: 8 microbatches a step, a short last batch, dropout and BatchNorm."""
    return {
        "name": "toy",
        "task": "engine.tasks.toy:Toy",
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01},
        "batch": {"size": 64, "microbatch": 8},
        "steps": 40,
        "workers": {"min": 1, "max": 8},
        "checkpoint": {"every_steps": 10},
        **fields,
    }


def probe(
    rows: list[Any], *, task: str = "Probe", args: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """A spec of a linear probe: plain SGD with lr 1, samples in order, one sample per microbatch."""
    return {
        "name": "probe",
        "task": f"engine.tasks.probe:{task}",
        "task_args": {"rows": rows, **(args or {})},
        "optimizer": {"name": "sgd", "lr": 1.0},
        "batch": {"size": 2, "microbatch": 1},
        "epochs": 1,
        "shuffle": False,
        "workers": {"min": 1, "max": 2},
        "checkpoint": {"every_steps": None},
        **fields,
    }


def run(
    folder: Path,
    spec: dict[str, Any],
    workers: int | tuple[int, int] = 1,
    *faults: tuple[int, Fault],
    timeout_s: float = 120.0,
    **more: Any,
) -> Run:
    """Run an attempt to its end. A whole number of workers: begin when all are there, go on with any."""
    both = (workers, workers) if isinstance(workers, int) else workers
    return Run(folder, spec, both, faults=list(faults), **more).go(timeout_s)


@dataclass
class Run:
    """One attempt on local processes. `faults`: (step, what), each done once when that step is accepted."""

    folder: Path
    spec: dict[str, Any]
    workers: tuple[int, int]
    number: int = 1
    job: str = "job"
    faults: list[tuple[int, Fault]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    outcome: Outcome | None = None
    on_fact: Callable[[dict[str, Any]], None] | None = None
    bucket: tuple[str, dict[str, str]] | None = None  # URL and options; default: a local folder
    wrap_storage: Callable[[Any], Any] = lambda storage: storage
    launch: Callable[[Path], LocalLauncher] = RoughLauncher
    host: str = "127.0.0.1"
    heartbeat_s: float | None = None  # default: the policy's
    policy: dict[str, float] = field(default_factory=dict)  # what else of it is not the default

    def go(self, timeout_s: float = 120.0) -> Run:
        self.outcome = asyncio.run(self._within(timeout_s))
        return self

    async def _within(self, timeout_s: float) -> Outcome:
        running = asyncio.ensure_future(self._run())
        await asyncio.wait([running], timeout=timeout_s)
        if not running.done():
            said = self.state()
            running.cancel()
            await asyncio.wait([running])
            raise TimeoutError(f"not over after {timeout_s:.0f} s\n{said}")
        return running.result()

    async def _run(self) -> Outcome:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        url, options = self.bucket or ((self.folder / "objects").as_uri(), {})
        self.storage = self.wrap_storage(open_storage(url, options))
        self.launcher = self.launch(self.folder / "logs")
        self.attempt = Attempt(
            spec=parse_spec(self.spec),
            job=self.job,
            attempt=self.number,
            storage=self.storage,
            launcher=self.launcher,
            sink=self._take,
            host=self.host,
            welcome={"storage_options": options},
            workers=self.workers,
        )
        fleet = self.attempt.machine.fleet
        fleet.policy = replace(fleet.policy, **self.policy)  # type: ignore[arg-type]
        if self.heartbeat_s is not None:
            fleet.policy = replace(fleet.policy, heartbeat_s=self.heartbeat_s)
            self.attempt.coordinator.welcome["beat_s"] = self.heartbeat_s / 4
        return await self.attempt.run()

    def _take(self, fact: dict[str, Any]) -> None:
        self.facts.append(fact)
        if self.on_fact is not None:
            self.on_fact(fact)
        if fact["kind"] == "generation" and fact["generation"] == 1:
            self.soon(scale(self.spec["workers"]["min"], self.workers[1]))
        if fact["kind"] == "metric" and "loss" in fact["values"]:
            for at, fault in [f for f in self.faults if fact["step"] >= f[0]]:
                self.faults.remove((at, fault))
                self.soon(fault)

    def soon(self, fault: Fault) -> None:
        """Outside of the machine's own turn."""
        asyncio.get_running_loop().call_soon(fault, self)

    def later(self, after_s: float, fault: Fault) -> None:
        asyncio.get_running_loop().call_later(after_s, fault, self)

    # ---- what can be seen -------------------------------------------------------------------

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [f for f in self.facts if f["kind"] == kind]

    def events(self, type_: str) -> list[dict[str, Any]]:
        return [f for f in self.of_kind("event") if f["type"] == type_]

    def metric(self, name: str) -> dict[int, float]:
        return {f["step"]: f["values"][name] for f in self.of_kind("metric") if name in f["values"]}

    def steps(self) -> list[int]:
        """Accepted steps, in the order in which they were accepted."""
        return [f["step"] for f in self.of_kind("metric") if "loss" in f["values"]]

    def manifest(self, step: int | None = None) -> dict[str, Any]:
        step = self.attempt.checkpoints.steps()[-1] if step is None else step
        found = self.attempt.checkpoints.read(step)
        assert found is not None
        return found

    @property
    def digests(self) -> tuple[str, str]:
        manifest = self.manifest()
        return manifest["params_digest"], manifest["state_digest"]

    def tensors(self, step: int | None = None) -> dict[str, Any]:
        """The exported model."""
        step = self.attempt.checkpoints.steps()[-1] if step is None else step
        return load_file(
            self.folder / f"objects/jobs/{self.job}/checkpoints/{step:010d}" / "model.safetensors"
        )

    def active(self) -> list[str]:
        return list(self.attempt.machine.members)

    def state(self) -> str:
        """For the post-mortem of a run that hangs: what the machine waits for, and where the workers are."""
        machine = self.attempt.machine
        generation, progress = machine.generation, machine.progress
        lines = [
            f"{machine.phase}, generation {generation.number} of {list(generation.ids)}",
            f"step {progress.step}, saved {progress.saved_step}, awaited {sorted(generation.awaited)}",
            *(repr(w) for w in machine.roster.workers.values() if w.state not in (State.LOST, State.ENDED)),
            *(f"{f['at'][11:23]} {f['type']}: {f['message']}" for f in self.of_kind("event")[-25:]),
        ]
        stacks = self.launcher.stacks() if isinstance(self.launcher, RoughLauncher) else ""
        return "\n".join([*lines, stacks])

    def log(self, worker: str) -> str:
        return (self.folder / "logs" / f"{worker}.log").read_text()


# ---- faults ------------------------------------------------------------------------------------


def kill(rank: int) -> Fault:
    """SIGKILL the worker that has this rank now."""
    return send(rank, signal.SIGKILL)


def freeze(rank: int) -> Fault:
    return send(rank, signal.SIGSTOP)


def send(rank: int, number: signal.Signals) -> Fault:
    return lambda run: os.kill(run.launcher.pid(run.active()[rank % len(run.active())]), number)


def scale(minimum: int, target: int) -> Fault:
    return lambda run: run.attempt.scale(minimum, target)


def finish(why: Any) -> Fault:
    return lambda run: run.attempt.finish(why)


def once(holds: Callable[[Run], bool], fault: Fault) -> Fault:
    """The fault, as soon as that holds: on a busy machine it takes its time."""

    def wait(run: Run) -> None:
        if holds(run):
            fault(run)
        else:
            asyncio.get_running_loop().call_later(0.002, wait, run)

    return wait


def once_saved(step: int, fault: Fault) -> Fault:
    """The fault, as soon as the checkpoint of `step` exists."""

    def saved(run: Run) -> bool:
        return any(f["step"] == step and f["state"] == "saved" for f in run.of_kind("checkpoint"))

    return once(saved, fault)


def kill_all(run: Run) -> None:
    for worker in run.active():
        os.kill(run.launcher.pid(worker), signal.SIGKILL)


def show(run: Run) -> None:
    for fact in run.facts:
        if fact["kind"] == "event":
            print(fact["at"][11:23], fact["type"], fact["message"], json.dumps(fact["data"]))
    print(run.outcome)

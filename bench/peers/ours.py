"""The driver of one elastrain attempt: the real engine, its workers as local processes or on a Ray head.

setting: workers, ckpt_every (0: never), microbatch, spares, spec (more fields of the job spec), ray (whether
on a Ray head of its own, as `elastrain up` starts it). Orders come as lines of `{run}/orders`: "scale N",
"decoy".

A step counts as committed when the driver has accepted it, which is later than when a worker has it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastrain.trainers.coordination.attempt import Attempt
from elastrain.trainers.launching.launcher import Launcher
from elastrain.trainers.launching.local_launcher import LocalLauncher
from elastrain.trainers.spec import JobSpec, parse_spec
from elastrain.trainers.storage import open_storage
from rig.events import Events, Setting

LOOK_S = 0.01
Fact = dict[str, Any]


def job_spec(setting: dict[str, Any]) -> JobSpec:
    """The bench's job. Raises SpecError where this version does not know a field that is set."""
    spares = {"spares": setting["spares"]} if setting.get("spares") else {}
    return parse_spec(
        {
            "name": "bench",
            "task": "peers.task:Gpt",
            "optimizer": {"name": "adam", "lr": 3e-4},
            "batch": {"size": 12, "microbatch": setting["microbatch"]},
            "shuffle": False,
            "steps": 1_000_000,
            "workers": {"min": 1, "max": 12 // setting["microbatch"], **spares},
            "checkpoint": {"every_steps": setting["ckpt_every"] or None, "keep": 2},
            **setting.get("spec", {}),
        }
    )


class Driver:
    def __init__(self, setting: Setting) -> None:
        self.setting, self.log = setting, Events("driver")
        (setting.folder / "logs").mkdir()
        self.orders = setting.folder / "orders"
        self.attempt = Attempt(
            spec=job_spec(setting.values),
            job="bench",
            attempt=1,
            storage=open_storage((setting.folder / "objects").as_uri()),
            launcher=self._launcher(),
            sink=self.hear,
            workers=(setting.workers, setting.workers),
        )

    def _launcher(self) -> Launcher:
        if not self.setting.ray:
            return LocalLauncher(self.setting.folder / "logs")
        start_ray(self.setting.folder / "home")
        from elastrain.trainers.launching.ray_launcher import RayLauncher

        return RayLauncher(
            "bench",
            1,
            tag="bench/bench/1",
            resources={"CPU": 1},
            labels={},
            storage_url=(self.setting.folder / "objects").as_uri(),
            storage_options={},
            said=lambda fact: None,
        )

    def hear(self, fact: Fact) -> None:
        if fact["kind"] == "metric" and "loss" in fact["values"]:
            values = fact["values"]
            self.log("commit", step=fact["step"], world=int(values["workers"]), loss=values["loss"])
        elif fact["kind"] == "worker":
            self.log(
                "worker", worker=fact["id"], worker_pid=fact["pid"], rank=fact["rank"], state=fact["state"]
            )
        elif fact["kind"] == "event":
            self.log("said", type=fact["type"], message=fact["message"])
        elif fact["kind"] == "generation" and fact["generation"] == 1:
            loop = asyncio.get_running_loop()  # all are there: from now on go on with any number
            loop.call_soon(self.attempt.scale, 1, self.setting.workers)

    async def run(self) -> None:
        obeying = asyncio.create_task(self.obey())
        outcome = await self.attempt.run()
        obeying.cancel()
        print(outcome, flush=True)

    async def obey(self) -> None:
        done = 0
        while True:
            await asyncio.sleep(LOOK_S)
            lines = self.orders.read_text().splitlines() if self.orders.exists() else []
            for line in lines[done:]:
                word, *rest = line.split()
                self.log("order", order=line)
                if word == "scale":
                    self.attempt.scale(1, int(rest[0]))
                elif word == "decoy":
                    start_aside(decoy)
            done = len(lines)


def start_ray(folder: Path) -> None:
    """A head for this run alone. It carries the run's mark, by which it is ended."""
    from elastrain.service.up_home import Home
    from elastrain.service.up_ray import RayHead

    home = Home(folder)
    head = RayHead(home, cpus=4)
    head.start()
    while not head.ready():
        if not head.alive:
            raise SystemExit(head.why())
        time.sleep(0.2)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home.ray_token_file)}
    os.environ.update({**token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"})
    import ray

    ray.init(f"127.0.0.1:{head.ports.gcs}", log_to_driver=False)


def start_aside(what: Callable[[], None]) -> None:
    """A process started in the way of the local launcher's workers, that is none of them."""
    from elastrain.trainers.launching import local_launcher

    local_launcher._context.Process(target=what, daemon=True).start()


def decoy() -> None:
    """All that a worker does until it is warm, and then nothing: what a start costs, by itself."""
    log = Events("decoy")
    from elastrain.trainers.numerics.flat import FlatModel
    from elastrain.trainers.numerics.memory import keep_memory, return_memory
    from elastrain.trainers.task import load_task
    from elastrain.trainers.training.replica import Replica, make_module
    from elastrain.trainers.training.samples import SampleReader
    from elastrain.trainers.worker import set_numerics
    from rig.run import anonymous_mb

    log("imported", anonymous_mb=anonymous_mb("self"))
    spec = job_spec(Setting().values)
    set_numerics(spec)
    return_memory()
    task = load_task(spec.task, spec.task_args)
    model = FlatModel(make_module(task, spec.seed))
    reader = SampleReader(task, spec.seed)
    Replica(spec, task, model, reader.size("train"), reader.size("val"))
    keep_memory()
    log("decoy", cpu_s=round(time.process_time(), 3))
    os._exit(0)


def main() -> None:
    asyncio.run(Driver(Setting()).run())


if __name__ == "__main__":
    main()

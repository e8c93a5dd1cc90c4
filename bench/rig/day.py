"""A day in the life of a reconciler, in minutes: simulated time, jobs that come and go, memory by the hour.

    python -m rig.day FOLDER HOURS STEP_S       one JSON object {rows: [{hour, rss_mb, objects, jobs}], ...}

A process of its own, since it measures itself. The clock, Ray and the drivers are those of the tests; the
store, the reconciler and the janitor are the service's own. A job comes every minute and trains for some
minutes; now and then one is cancelled, paused and resumed, or loses its driver. Ended jobs are kept for half
an hour, so that after the first hours whatever still grows is kept by mistake.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parents[2] / "tests"
HOUR_S, NEW_EVERY_S = 3600.0, 60.0
SPEAK_EVERY_S = 15.0  # what drivers say costs more than the rounds that it is about
LASTS_S = (60.0, 900.0)
KEEP_DAYS = 0.5 / 24


class Day:
    def __init__(self, folder: Path) -> None:
        sys.path.append(str(TESTS))
        from world import World

        self.world = World(folder, cpus=16.0, env={"ELASTRAIN_KEEP_ENDED_DAYS": str(KEEP_DAYS)})
        self.random = random.Random(0)
        self.live: dict[str, Any] = {}  # job -> its driver
        self.until: dict[str, float] = {}
        self.came = 0
        self.next_at = self.speak_at = self.world.clock.at

    def round(self, step_s: float) -> None:
        world, at = self.world, self.world.clock.at + step_s
        while self.next_at <= at:
            self.next_at += NEW_EVERY_S
            self.came += 1
            world.submit(name=f"job-{self.came}", workers={"min": 1, "max": 1 + self.came % 4})
        world.round(step_s)
        world.janitor.round()
        if at >= self.speak_at:
            self.speak_at = at + SPEAK_EVERY_S
            self._drive(at)
        self._forget()

    def _drive(self, at: float) -> None:
        world = self.world
        for launch in world.ray.launches:
            if "ELASTRAIN_CLAIM" not in launch.env:  # a search for what a driver has left: there is nothing
                world.ray.set(launch.submission_id, "SUCCEEDED")
                continue
            driver = world.driver(launch.env["ELASTRAIN_JOB"])
            if world.ray.known[launch.submission_id].status == "RUNNING" and not driver.token:
                self._claim(driver, at)
        world.ray.launches.clear()
        for job, driver in list(self.live.items()):
            if at >= self.until[job]:
                self._turns(job, driver, at)
            if job in self.live:  # a driver hears at once of what it is asked, not after the next round
                self._obeys(job, driver, at)

    def _claim(self, driver: Any, at: float) -> None:
        driver.claim(nonce=driver.launch.submission_id)
        driver.post({"kind": "progress", "status": "running", "step": 0, "total_steps": 100})
        self.live[driver.job] = driver
        self.until[driver.job] = at + self.random.uniform(*LASTS_S)

    def _obeys(self, job: str, driver: Any, at: float) -> None:
        wanted = driver.desired()["desired"]
        if wanted == "run":
            driver.step(int(at - self.until[job] + LASTS_S[1] * 2))
        else:
            self._ends(job, driver, {"cancel": "cancelled", "pause": "paused"}.get(wanted, "preempted"))

    def _turns(self, job: str, driver: Any, at: float) -> None:
        """Most jobs succeed; one in ten is asked to stop, one in ten loses its driver and goes on."""
        fate = self.random.random()
        self.until[job] = at + LASTS_S[0]
        if fate < 0.05:
            self.world.cancel(job)
        elif fate < 0.1:
            self.world.ask("pause", job)
        elif fate < 0.2:
            driver.exits("FAILED", "killed")
            del self.live[job]
        else:
            self._ends(job, driver, "succeeded")

    def _ends(self, job: str, driver: Any, outcome: str) -> None:
        driver.ends(outcome)
        del self.live[job]
        if outcome == "paused":
            self.world.round(0.0)
            self.world.ask("resume", job)

    def _forget(self) -> None:
        """The fake remembers what it was asked; Ray forgets as well, in its own time."""
        ray = self.world.ray
        ray.stops.clear()
        if len(ray.known) > 500:
            for id in [id for id, job in ray.known.items() if job.status != "RUNNING"][:250]:
                del ray.known[id]


def main(folder: Path, hours: float, step_s: float) -> None:
    import logging

    logging.disable(logging.WARNING)
    day, process, rows = Day(folder), psutil.Process(), []
    began, cpu, rounds = day.world.clock.at, time.process_time(), 0
    for hour in range(1, round(hours) + 1):
        while day.world.clock.at - began < hour * HOUR_S:
            day.round(step_s)
            rounds += 1
        gc.collect()
        known = sum(day.world.control.counts().values())
        row = {"hour": hour, "rss_mb": process.memory_info().rss / 1e6, "objects": len(gc.get_objects())}
        rows.append({**row, "jobs": known, "came": day.came})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"rows": rows, "rounds": rounds, "cpu_s": time.process_time() - cpu}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))

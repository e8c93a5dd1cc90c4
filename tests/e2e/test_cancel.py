"""Cancelled means gone: whatever ignores SIGTERM, hid in a session of its own, or was killed on the way."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from e2e.house import DIGITS, SHORT, House, Houses, Watched, active, eventually, kill_pid
from e2e.processes import no_zombies, of
from elastrain.client import Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Submit = Callable[..., Watched]
BULK = int(os.environ.get("BULK", "6"))  # jobs; with 100 it takes some minutes

# ignores SIGTERM, has a child in a session of its own and a grandchild that nobody is the parent of any more
STUBBORN = """
    import signal, subprocess, sys, time
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset
    from elastrain.trainers.task import Loss, Task

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
    ORPHAN = "import subprocess, sys; subprocess.Popen(%r, start_new_session=True)" % SLEEP
    subprocess.Popen(SLEEP, start_new_session=True)
    subprocess.run([sys.executable, "-S", "-c", ORPHAN], check=True)

    class Stubborn(Task):
        def model(self):
            return nn.Linear(1, 1)
        def dataset(self, split):
            return TensorDataset(torch.ones(64, 1)) if split == "train" else None
        def loss(self, model, batch):
            time.sleep(0.05)
            return Loss(sum=model(batch[0]).sum(), weight=len(batch[0]))
"""
SPEC = {
    "name": "stubborn",
    "task": "stubborn_task:Stubborn",
    "batch": {"size": 16, "microbatch": 8},
    "epochs": 10_000,
    "workers": {"min": 1, "max": 1},
}


def sleepers(job: Job) -> list[psutil.Process]:
    return [process for process in of(job) if "time.sleep(3600)" in " ".join(process.cmdline())]


def proven(job: Job) -> bool:
    receipt = job.refresh().data["receipt"]
    assert receipt is not None
    return bool(receipt["proven"])


@pytest.fixture
def stubborn(house: House, tmp_path: Path) -> Job:
    """A job that trains, with two sleepers of its own."""
    (tmp_path / "stubborn_task.py").write_text(dedent(STUBBORN))
    job = house.client.submit(SPEC, working_dir=tmp_path)
    eventually(lambda: active(job) and len(sleepers(job)) == 2)
    return job


def test_a_worker_that_ignores_sigterm_is_gone_with_all_that_it_started(house: House, stubborn: Job) -> None:
    assert stubborn.cancel().wait(60).status == "cancelled"
    assert of(stubborn) == [] and proven(stubborn)
    shown = house.cli("get", stubborn.id).stdout
    assert "proven: 1 node searched" in shown
    (event,) = [event for event in stubborn.events() if event["type"] == "attempt.receipt"]
    assert "Every process of attempt 1 is gone" in event["message"]
    assert stubborn.cancel().status == "cancelled", "a second one is harmless"
    assert eventually(lambda: no_zombies(house), 10)


def test_a_service_killed_during_the_cancel_of_a_driver_that_does_not_answer_finds_everything(
    houses: Houses, stubborn: Job
) -> None:
    driver = houses.now.driver(stubborn)
    driver.suspend()
    assert stubborn.cancel().status == "cancelling"
    houses.now.kill()
    assert len(sleepers(stubborn)) == 2
    house = houses.now  # the next `up`: it waits for the grace time, has Ray stop the driver, and searches
    job = house.client.job(stubborn.id)
    assert job.status == "cancelling"
    assert job.wait(120).status == "cancelled"
    assert not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE
    assert of(job) == [] and proven(job)
    assert "cancel" in [item["reason"] for item in job.data["transitions"]][-2]
    assert eventually(lambda: no_zombies(house), 10)


def test_a_driver_killed_during_the_cancel_leaves_nothing(house: House, stubborn: Job) -> None:
    driver = house.driver(stubborn)
    driver.suspend()  # so that it cannot be faster
    stubborn.cancel()
    kill_pid(driver.pid)
    assert stubborn.wait(60).status == "cancelled"
    assert of(stubborn) == [] and proven(stubborn)


@pytest.mark.parametrize("moment", ["starting", "resizing", "checkpointing"])
def test_a_cancel_at_any_moment_leaves_nothing(house: House, submit: Submit, moment: str) -> None:
    often = "checkpoint.every_steps=1" if moment == "checkpointing" else "checkpoint.every_steps=1000"
    run = submit("epochs=2000", often, workers="{min: 1, max: 1}")
    if moment == "starting":
        eventually(lambda: [p for p in of(run.job) if "ray_worker" in " ".join(p.cmdline())])
    elif moment == "resizing":
        run.at_step(5)
        run.job.scale(1, 2)
        eventually(lambda: len(run.job.workers()) == 2)
    else:
        eventually(lambda: len(run.record.of_type("checkpoint.saved")) >= 2)
    run.job.cancel()
    assert run.job.wait(60).status == "cancelled"
    assert of(run.job) == [] and proven(run.job)
    assert eventually(lambda: no_zombies(house), 10)


def test_jobs_that_are_cancelled_in_bulk_give_everything_back(house: House) -> None:
    def used() -> float:
        return float(sum(node["used"].get("CPU", 0) for node in house.client.cluster()["nodes"]))

    jobs = []
    for number in range(BULK):
        jobs.append(house.client.submit(DIGITS, overrides=[*SHORT, "workers={min: 2, max: 2}"]))
        time.sleep(0.4 * (number % 6))
        jobs[-1].cancel()
    assert {job.wait(120).status for job in jobs} == {"cancelled"}
    assert all(of(job) == [] for job in jobs)
    eventually(lambda: used() == 0, 30)
    last = house.client.submit(DIGITS, overrides=[*SHORT, "epochs=2", "workers={min: 2, max: 2}"])
    assert last.wait(120).status == "succeeded"
    eventually(lambda: last.refresh().data["receipt"], 30)  # success needs no proof, and comes first
    assert proven(last) and eventually(lambda: of(last) == [], 10)
    assert eventually(lambda: no_zombies(house), 10)


def test_a_head_that_is_killed_during_a_cancel_leaves_nothing_and_the_receipt_says_unproven(
    house: House, submit: Submit
) -> None:
    run = submit("epochs=2000", workers="{min: 1, max: 1}").at_step(5)
    driver = house.driver(run.job)
    driver.send_signal(signal.SIGSTOP)
    run.job.cancel()
    os.kill(json.loads((house.home / "ray.json").read_text())["pid"], signal.SIGKILL)
    assert run.job.wait(120).status == "cancelled"
    job = run.job.refresh().data
    assert (job["reason"], job["receipt"]["proven"], job["receipt"]["reason"]) == (
        "cluster_lost",
        False,
        "cluster_lost",
    )
    assert of(run.job) == []

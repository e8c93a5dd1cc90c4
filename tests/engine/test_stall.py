"""Workers that live and do not get on; a driver that stands still."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.harness import probe, run

pytestmark = pytest.mark.engine

ROWS = [1.0, -2.0, 3.0, 0.5, 2.0, -1.0, 4.0, 1.0]


def test_a_worker_that_deadlocks_in_a_microbatch_is_removed_and_another_computes_it(tmp_path: Path) -> None:
    alone = run(tmp_path / "one", probe(ROWS))
    args = {"sample": 5, "how": "hang", "once": str(tmp_path / "once")}
    spec = probe(ROWS, task="Faulty", args=args)
    stuck = run(tmp_path / "two", spec, 2, policy={"stall_s": 3.0})
    assert stuck.outcome is not None and stuck.outcome.outcome == "succeeded"
    assert stuck.manifest()["params_digest"] == alone.manifest()["params_digest"]
    assert stuck.steps() == [1, 2, 3, 4]
    (lost,) = stuck.events("worker.lost")
    assert "said nothing for 3 s since it began microbatch 1 of step 2" in lost["data"]["cause"]
    (told,) = stuck.events("worker.stalled")
    assert told["data"]["worker"] == lost["data"]["worker"]
    log = stuck.log(lost["data"]["worker"])
    assert "probe.py" in log and "in loss" in log, "its log shows where it was"


def test_a_microbatch_that_hangs_on_whoever_computes_it_fails_the_job_by_name(tmp_path: Path) -> None:
    spec = probe(ROWS, task="Faulty", args={"sample": 5, "how": "hang"})
    stuck = run(tmp_path, spec, 2, policy={"stall_s": 2.0})
    assert stuck.outcome is not None
    assert (stuck.outcome.outcome, stuck.outcome.failed_by) == ("failed", "user")
    assert "microbatch 1 of step 2 was not done within 2 s on 3 workers" in (stuck.outcome.message or "")


def test_a_microbatch_that_holds_the_interpreter_for_seconds_is_not_a_death(tmp_path: Path) -> None:
    args = {"sample": 5, "how": "grip", "once": str(tmp_path / "once")}
    gripped = run(tmp_path, probe(ROWS, task="Faulty", args=args), 2)
    assert gripped.outcome is not None and gripped.outcome.outcome == "succeeded"
    assert not gripped.events("worker.lost")
    assert gripped.steps() == [1, 2, 3, 4]


DRIVER = """
import json, pathlib, sys
from engine.harness import run, toy

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    tell = lambda _: print("at step 5", flush=True)
    job = run(folder, toy(steps=60, task_args={"sleep_s": 0.02}), 2, (5, tell))
    lost = [e["message"] for e in job.events("worker.lost")]
    print(json.dumps({"outcome": job.outcome.outcome, "steps": job.steps(), "lost": lost}), flush=True)
"""


def test_a_driver_that_was_stopped_for_seconds_finds_everybody_where_they_were(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "at step 5\n"
            driver.send_signal(signal.SIGSTOP)
            time.sleep(6.0)  # three heartbeats
            driver.send_signal(signal.SIGCONT)
            said = json.loads(driver.stdout.readline())
        finally:
            driver.kill()
    assert said == {"outcome": "succeeded", "steps": list(range(1, 61)), "lost": []}

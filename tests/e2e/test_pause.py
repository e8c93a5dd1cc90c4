"""Pause, resume, checkpoint now, begin from another job, delete: on a real Ray, from the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.house import STEPS, House, Watched, active, digests, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Submit = Callable[..., Watched]


def test_a_paused_job_leaves_no_process_and_goes_on_to_the_bits_of_an_undisturbed_one(
    house: House, submit: Submit, undisturbed: dict[str, object]
) -> None:
    run = submit().at_step(50)
    asked = house.cli("checkpoint", run.job.id, "--wait", "60")
    assert asked.returncode == 0 and "is saved" in asked.stdout, asked.stderr
    saved = [checkpoint.step for checkpoint in run.job.checkpoints()]
    assert any(step % 40 for step in saved), saved
    pids = {house.driver(run.job).pid, *active(run.job).values()}
    assert house.cli("pause", run.job.id).returncode == 0
    eventually(lambda: run.job.refresh().status == "paused")
    eventually(lambda: not pids & {process.pid for process in house.processes()}, 20)
    eventually(lambda: not any(node["used"].get("CPU") for node in house.client.cluster()["nodes"]), 20)
    paused_at = run.job.checkpoints()[-1].step
    assert run.record.step <= paused_at < STEPS
    assert house.cli("resume", run.job.id).returncode == 0
    job = run.ended()
    assert (job.status, job.data["counters"]["retries_left"]) == ("succeeded", 3), job.data["message"]
    assert run.record.of_type("checkpoint.restored")[-1]["data"]["step"] == paused_at
    assert run.record.lost(STEPS) == 0
    assert digests(job) == undisturbed


def test_a_job_begins_from_another_ones_checkpoint_and_both_are_deleted_with_all_they_left(
    house: House, submit: Submit, undisturbed: dict[str, object]
) -> None:
    first = submit().ended()
    assert first.status == "succeeded"
    step = next(checkpoint.step for checkpoint in first.checkpoints() if checkpoint.step < STEPS)
    run = submit(f"resume_from={first.id}@{step}")
    second = run.ended()
    assert second.status == "succeeded", second.data["message"]
    assert run.record.of_type("checkpoint.restored")[0]["data"] == {
        "attempt": 1,
        "step": step,
        "job": first.id,
    }
    assert digests(second) == undisturbed
    for job in (first, second):
        folder = house.home / "objects" / "jobs" / job.id
        assert any(folder.rglob("*.safetensors"))
        assert house.cli("delete", job.id).returncode == 0
        assert house.cli("get", job.id).returncode == 3
        eventually(lambda folder=folder: not any(path.is_file() for path in folder.rglob("*")), 150)

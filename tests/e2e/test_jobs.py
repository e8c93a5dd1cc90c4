"""What a user does with jobs, from the command line to the model, and what goes wrong in their own code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from e2e.house import ROOT, SHORT, House, Watched, active, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Submit = Callable[..., Watched]


def test_a_folder_with_packages_named_api_service_and_trainers_trains_and_its_model_is_downloaded(
    house: House, tmp_path: Path
) -> None:
    folder = ROOT / "examples" / "own_task"
    followed = house.cli(
        *("submit", "job.yaml", "--working-dir", ".", "--follow", "--set", "epochs=3"), cwd=folder
    )
    assert followed.returncode == 0, followed.stdout + followed.stderr
    (job,) = [job for job in house.client.jobs() if job.data["name"] == "own-task"]
    assert job.status == "succeeded"
    assert job.data["metrics"]["latest"]["val_accuracy"] > 0.5
    assert house.cli("download", job.id, "--out", str(tmp_path)).returncode == 0
    from safetensors.torch import load_file

    assert load_file(tmp_path / "model.safetensors")["0.weight"].shape == (64, 2)


def test_a_running_job_is_scaled_looked_at_and_cancelled_with_nothing_left(
    house: House, submit: Submit
) -> None:
    run = submit("epochs=2000", workers="{min: 1, max: 1}").at_step(10)
    assert house.cli("scale", run.job.id, "1:2").returncode == 0
    eventually(lambda: len(active(run.job)) == 2)
    for command in ("get", "logs", "events", "metrics", "checkpoints"):
        shown = house.cli(command, run.job.id)
        assert shown.returncode == 0, (command, shown.stderr)
    assert run.job.id in house.cli("ls").stdout
    pids = list(active(run.job).values())
    assert house.cli("cancel", run.job.id).returncode == 0
    assert run.ended(60).status == "cancelled"
    alive = {process.pid for process in house.processes()}
    assert not alive & set(pids)
    assert house.cli("wait", run.job.id).returncode == 1


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("batch.microbatch=33", "microbatch"),
        ("workers={min: 1, max: 9}", "microbatch"),
        ("optimiser={name: adam}", "optimizer"),
        ("strategy={name: gossip, graph: star}", "exponential"),
        ("name=Not A Name", "name"),
    ],
)
def test_a_spec_that_cannot_work_is_refused_at_the_door(house: House, override: str, word: str) -> None:
    refused = house.cli("submit", "examples/digits.yaml", "--set", override)
    assert refused.returncode == 2
    assert word in refused.stderr


BROKEN = """
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset
    from elastrain.trainers.task import Loss, Task

    class Raises(Task):
        def model(self):
            return nn.Linear(1, 1)
        def dataset(self, split):
            return TensorDataset(torch.ones(64, 1)) if split == "train" else None
        def loss(self, model, batch):
            return Loss(model(batch[0]).sum() * undefined_name, 1)

    class Empty(Raises):
        def dataset(self, split):
            return TensorDataset(torch.ones(0, 1))
"""


def test_what_is_wrong_with_the_users_code_is_the_message_of_the_failed_job(
    house: House, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(dedent(BROKEN))
    spec = {
        "batch": {"size": 8, "microbatch": 4},
        "steps": 3,
        "workers": {"min": 1, "max": 1},
        "resources": {"cpu": 0.5},
    }
    expected = {
        "broken:Raises": ("NameError", "undefined_name", "broken.py"),
        "broken:Empty": ("0 samples",),
        "broken:Missing": ("Missing", "Raises"),
        "no_such_module:Task": ("no_such_module",),
    }
    jobs = {
        task: house.client.submit({**spec, "name": "broken", "task": task}, working_dir=tmp_path)
        for task in expected
    }
    for task, words in expected.items():
        job = eventually(lambda job=jobs[task]: job.refresh().status == "failed" and job, 120)
        assert job.data["failed_by"] == "user", (task, job.data)
        for word in words:
            assert word in job.data["message"], (task, job.data["message"])
        assert job.data["counters"]["attempts"] == 1, "a user's error is not tried again"


def test_the_examples_spec_is_what_the_readme_says(house: House) -> None:
    def schedulable() -> bool:
        answer = house.cli("submit", "examples/digits.yaml", "--dry-run", "-o", "json", "--set", SHORT[0])
        assert answer.returncode == 0, answer.stderr
        return json.loads(answer.stdout)["schedulable"] is True

    eventually(schedulable, 60)  # the jobs of the test before may still be giving back what they had

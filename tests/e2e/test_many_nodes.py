"""A cluster of several nodes: one is killed with its workers, one comes, one is drained. The job goes on."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from e2e.house import DIGITS, House, Watched, active, digests, eventually
from elastrain.api.cli import demo_server
from elastrain.client import Job
from raylets import Raylet

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CODE = Path(__file__).with_name("braked")
EPOCHS = 150
STEPS = 6 * EPOCHS


class Farm:
    """A head with one CPU, and nodes with one CPU each: so each worker of a job is on a node of its own."""

    def __init__(self, home: Path) -> None:
        self.house = House(home, demo_server.start(home, "--cpus", "1")).ready()
        self.brake = home / "brake"
        self.nodes: list[Raylet] = []

    def node(self) -> Raylet:
        self.nodes.append(Raylet(self.house.home))
        return self.nodes[-1].joined()

    def submit(self, most: int, *more: str) -> Watched:
        """A job for up to so many workers, slow until `release`."""
        spec = {"brake": str(self.brake), "sleep_s": 0.05, "channels": 8, "hidden": 32}
        overrides = [
            f"epochs={EPOCHS}",
            "task=braked:Braked",
            f"task_args={spec}",
            f"workers={{min: 1, max: {most}}}",
            "batch.microbatch=64",
            "checkpoint.every_steps=300",
            "evaluate.every_steps=null",
            *more,
        ]
        return Watched(self.house.client.submit(DIGITS, working_dir=CODE, overrides=overrides))

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
        with contextlib.suppress(Exception):
            self.house.server.stop()
        assert self.house.cli("down").returncode == 0


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    made = Farm(tmp_path_factory.mktemp("farm"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def unbraked(farm: Farm) -> dict[str, Any]:
    """The same job with one worker on the head, and nothing happening to it."""
    return digests(farm.submit(1).ended())


def placed(job: Job) -> dict[str, str]:
    """Workers that train now -> Ray's id of their node."""
    return {worker["id"]: worker["node"] for worker in job.workers() if worker["state"] == "active"}


def goes_on(run: Watched, steps: int = 5) -> None:
    run.at_step(run.record.step + steps)


def test_a_node_is_killed_one_comes_one_is_drained_and_the_job_ends_with_the_same_bits(
    farm: Farm, unbraked: dict[str, Any]
) -> None:
    second = farm.node()
    farm.brake.touch()
    run = farm.submit(2)
    eventually(lambda: second.id in placed(run.job).values() and len(placed(run.job)) == 2, 120)
    goes_on(run)
    (lost,) = [worker for worker, node in placed(run.job).items() if node == second.id]
    assert active(run.job)[lost] in second.pids()

    second.kill()
    goes_on(run)
    assert lost in [event["data"]["worker"] for event in run.record.of_type("worker.lost")]
    assert len(placed(run.job)) == 1

    third = farm.node()
    eventually(lambda: third.id in placed(run.job).values(), 180)
    goes_on(run)

    third.drain(60)
    eventually(lambda: third.id not in placed(run.job).values(), 60)
    left = [event["data"] for event in run.record.of_type("worker.left")]
    assert len(left) == 1, left
    goes_on(run)

    farm.brake.unlink()
    job = run.ended()
    assert job.status == "succeeded", job.data["message"]
    assert job.data["counters"]["attempts"] == 1
    assert run.record.lost(STEPS) == 0
    assert digests(job) == unbraked


def test_ray_shows_a_job_by_its_name_and_with_its_numbers(farm: Farm) -> None:
    farm.brake.touch()
    run = farm.submit(1)
    run.at_step(10)
    links = run.job.refresh().data["links"]
    ray, _, page = links["ray_dashboard"].partition("/#/jobs/")
    token = (farm.house.home / "ray-token").read_text().strip()
    with httpx.Client(base_url=ray, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        shown = http.get(f"/api/jobs/{page}").raise_for_status().json()
        assert shown["entrypoint"].endswith(" elastrain.trainers.driver digits")
        assert shown["metadata"]["name"] == "digits" and shown["metadata"]["job"] == run.job.id
        actors = http.get("/api/v0/actors?detail=1&limit=1000").raise_for_status().json()
        alive = [actor for actor in actors["data"]["result"]["result"] if actor["state"] == "ALIVE"]
        names = [actor["name"] for actor in alive]
        assert [name for name in names if name.startswith(f"digits-{run.job.id}-1-agent-")], names
        listed = eventually(lambda: train_run(http, links["ray_train"], run.job, "RUNNING"), 60, 1.0)
        (worker,) = listed["attempts"][0]["workers"]
        assert {worker["pid"]} == set(active(run.job).values()) and worker["status"] == "ALIVE"
        assert worker["actor_id"] in {
            actor["actor_id"] for actor in alive if actor["job_id"] == listed["job_id"]
        }
    assert links["ray_actors"] == f"{ray}/#/actors" and links["ray_metrics"] == f"{ray}/#/metrics"
    port = json.loads((farm.house.home / "ports.json").read_text())["ray"] + 7  # its metrics-export-port
    metrics = eventually(lambda: numbers(port, run.job.id), 60, 1.0)
    farm.brake.unlink()
    assert all('job_name="digits"' in line and 'project="default"' in line for line in metrics.values())
    assert set(metrics) >= {
        "ray_elastrain_job_step",
        "ray_elastrain_job_step_seconds",
        "ray_elastrain_job_samples_per_second",
        "ray_elastrain_job_loss",
        "ray_elastrain_job_workers",
        "ray_elastrain_job_generation",
        "ray_elastrain_job_pauses_total",
    }
    run.job.cancel().wait(60)
    with httpx.Client(headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        ended = eventually(lambda: train_run(http, links["ray_train"], run.job, "ABORTED"), 60, 1.0)
    assert ended["status_detail"] == "cancelled"


def train_run(http: httpx.Client, page: str, job: Job, status: str) -> dict[str, Any] | None:
    """The job's first attempt on Ray's list of Train runs, once it has that status."""
    reply = http.get(page, timeout=30)
    listed = reply.json()["train_runs"] if reply.status_code == 200 else []  # 500 until there is a first one
    found = [r for r in listed if r["name"] == f"digits-{job.id}-1" and r["status"] == status]
    return found[0] if found and found[0]["attempts"][0]["workers"] else None


def test_what_the_claim_gives_for_workers_reaches_the_users_code_and_is_nowhere_in_ray(farm: Farm) -> None:
    """Secrets will go the same way: Ray shows environments and logs to whoever may call its API."""
    canary = secrets.token_hex(20)
    farm.brake.touch()
    run = farm.submit(1, f"env={{CANARY: '{canary}'}}")
    run.at_step(5)
    said = eventually(lambda: next((w for w in run.job.workers() if w["state"] == "active"), None))["id"]
    wanted = "the canary has 40 letters"
    eventually(lambda: wanted in farm.house.cli("logs", run.job.id, "--worker", said).stdout)
    ray = run.job.refresh().data["links"]["ray_dashboard"].partition("/#/")[0]
    token = (farm.house.home / "ray-token").read_text().strip()
    lists = ("actors", "tasks", "workers", "jobs", "nodes", "runtime_envs", "placement_groups", "objects")
    paths = ["/api/jobs/", *(f"/api/v0/{of}?detail=1&limit=10000" for of in lists)]
    with httpx.Client(base_url=ray, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        shown = {path: http.get(path, timeout=60).text for path in paths}
    assert run.job.id in shown["/api/jobs/"] and run.job.id in shown["/api/v0/actors?detail=1&limit=10000"]
    assert [path for path, text in shown.items() if canary in text] == []
    folder = Path(json.loads((farm.house.home / "ray.json").read_text())["temp_dir"])
    logs = [file for file in folder.glob("session_*/logs/**/*") if file.is_file()]
    assert len(logs) > 5 and [file for file in logs if canary.encode() in file.read_bytes()] == []
    farm.brake.unlink()
    run.job.cancel().wait(60)


def test_the_cluster_was_looked_at_and_the_doctor_finds_nothing_wrong(farm: Farm) -> None:
    eventually(lambda: farm.house.client.cluster()["check"])
    found = farm.house.cli("doctor")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "torch 2" in found.stdout and "WRONG" not in found.stdout


def numbers(port: int, job: str) -> dict[str, str]:
    """{metric: its line} of this job, on the head's metrics port; empty until it is complete."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10, trust_env=False).text
    lines = [line for line in text.splitlines() if "elastrain_job" in line and f'job_id="{job}"' in line]
    found = {line.partition("{")[0]: line for line in lines}
    return found if "ray_elastrain_job_step_seconds" in found else {}

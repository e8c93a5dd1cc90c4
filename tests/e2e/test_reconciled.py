"""The cluster as the service finds it: what others did there, and what jobs left."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from e2e.house import DIGITS, SHORT, House, Watched, eventually
from e2e.processes import no_zombies, of

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Submit = Callable[..., Watched]


def test_jobs_that_end_one_after_the_other_leave_as_many_processes_as_there_were(house: House) -> None:
    """Ray keeps some of its own for the next one: two more are allowed."""
    short = [*SHORT, "epochs=1", "workers={min: 1, max: 1}"]
    counts = []
    for _ in range(3):
        job = house.client.submit(DIGITS, overrides=short)
        assert job.wait(120).status == "succeeded"
        assert eventually(lambda job=job: of(job) == [] and no_zombies(house), 30)
        counts.append(len(house.processes()))
    assert eventually(lambda: len(house.processes()) <= counts[0] + 2, 60), counts


def test_a_driver_stopped_behind_our_back_is_followed_by_another_and_a_strangers_job_is_left_alone(
    house: House, submit: Submit
) -> None:
    run = submit("epochs=80", "checkpoint.every_steps=10", workers="{min: 1, max: 1}").at_step(30)
    ray, _, driver = run.job.refresh().data["links"]["ray_dashboard"].partition("/#/jobs/")
    token = (house.home / "ray-token").read_text().strip()
    with httpx.Client(base_url=ray, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as http:
        stranger = {"submission_id": f"somebody-else-{run.job.id}", "entrypoint": "sleep 600"}
        http.post("/api/jobs/", json=stranger, timeout=60).raise_for_status()
        http.post(f"/api/jobs/{driver}/stop", timeout=60).raise_for_status()
        job = run.ended(240)
        assert job.status == "succeeded", job.data["message"]
        assert job.data["counters"]["attempts"] == 2
        assert run.record.of_type("checkpoint.restored")[0]["data"]["step"] >= 20
        known = {item["submission_id"]: item["status"] for item in http.get("/api/jobs/").json()}
        assert known[stranger["submission_id"]] in ("PENDING", "RUNNING"), "it is not ours to stop"
        assert all(job.id != stranger["submission_id"] for job in house.client.jobs())
        http.post(f"/api/jobs/{stranger['submission_id']}/stop", timeout=60).raise_for_status()

"""Jobs that share one machine: they shrink for each other, are preempted, and come back."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from e2e.house import House, Watched, active, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Submit = Callable[..., Watched]


def test_a_job_shrinks_for_another_both_leave_for_an_urgent_one_and_come_back(
    house: House, submit: Submit
) -> None:
    def cpus() -> float:
        return sum(node["resources"].get("CPU", 0.0) for node in house.client.cluster()["nodes"])

    most, long = int(eventually(cpus)), "epochs=4000"
    first = submit(long, "batch.microbatch=8", workers=f"{{min: 1, max: {most}}}").at_step(20)
    eventually(lambda: len(active(first.job)) == most)
    second = submit(long, workers="{min: 1, max: 1}").at_step(5)
    assert len(active(first.job)) == most - 1, "what it gave up is in other hands"
    assert first.job.refresh().data["workers"]["target"] == most - 1

    urgent = submit(
        long, "priority=5", "batch.microbatch=8", workers=f"{{min: {most}, max: {most}}}"
    ).at_step(5)
    assert {first.job.refresh().status, second.job.refresh().status} == {"queued"}
    assert {first.job.data["reason"], second.job.data["reason"]} == {"preempted"}
    waiting = {item["id"]: item for item in json.loads(house.cli("queue", "-o", "json").stdout)}
    for job in (first.job, second.job):
        said = job.refresh().data["queue"]
        item = waiting[job.id]
        assert said == {name: item[name] for name in ("position", "blocked_by", "short_of")}
        assert said["short_of"] == {"workers": 1}
        assert said["blocked_by"] in house.cli("get", job.id).stdout
        assert said["blocked_by"] in house.cli("queue").stdout
    before = {job.id: job.data["progress"]["step"] for job in (first.job, second.job)}

    urgent.job.cancel().wait(60)
    for run in (first, second):
        run.at_step(before[run.job.id] + 5)
        data = run.job.refresh().data
        told = [
            event["message"] for event in run.job.events() if event["type"].startswith(("job", "attempt"))
        ]
        assert (data["attempt"], data["counters"]["retries_left"]) == (2, 3), told
    assert first.job.data["scaling"], "its speed was measured"

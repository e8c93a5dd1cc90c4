"""The service's side of Ray, against a real head: what it relies on is really so."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from elastrain.service import receipts
from elastrain.service.ray_jobs import ENDED, AlreadySubmitted, Launch, RayJobs, RayNode, RayUnreachable
from elastrain.service.up_ray import RayHead
from elastrain.trainers.launching import receipt_line

pytestmark = pytest.mark.ray


@pytest.fixture
def ray_jobs(ray_head: RayHead) -> Iterator[RayJobs]:
    ray_jobs = RayJobs(ray_head.address)
    yield ray_jobs
    ray_jobs.close()


def the_node(ray_jobs: RayJobs) -> RayNode:
    """The one that lives: Ray's list has those as well that earlier tests took away."""
    (node,) = (node for node in ray_jobs.nodes() if node.alive)
    return node


def wait_for(ray_jobs: RayJobs, id: str, *statuses: str) -> None:
    deadline = time.monotonic() + 90
    while (job := ray_jobs.job(id)) is None or job.status not in statuses:
        assert time.monotonic() < deadline, job
        time.sleep(0.2)


def test_a_driver_is_submitted_once_shown_stopped_and_only_told_what_it_may_know(ray_jobs: RayJobs) -> None:
    entrypoint = "sh -c 'echo $ELASTRAIN_JOB; exec sleep 300'"
    launch = Launch("abc123-j-0000000000-1", entrypoint, {"ELASTRAIN_JOB": "j-0000000000"})
    assert ray_jobs.job(launch.submission_id) is None
    ray_jobs.submit(launch)
    with pytest.raises(AlreadySubmitted):
        ray_jobs.submit(launch)
    wait_for(ray_jobs, launch.submission_id, "RUNNING")
    assert launch.submission_id in {job.submission_id for job in ray_jobs.jobs()}
    ray_jobs.stop(launch.submission_id)
    wait_for(ray_jobs, launch.submission_id, *ENDED)
    found = ray_jobs.job(launch.submission_id)
    assert found is not None and found.status == "STOPPED"
    ray_jobs.stop(launch.submission_id)
    ray_jobs.stop("abc123-j-0000000000-2")


def test_a_search_finds_an_orphan_on_the_cluster_and_its_receipt_is_in_the_log(ray_jobs: RayJobs) -> None:
    tag = f"test/{os.getpid()}/1"
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(
        sleep, env={**os.environ, "ELASTRAIN_ATTEMPT": tag}, start_new_session=True
    ) as orphan:
        launch = Launch(
            "abc123-j-0000000000-1-sweep-1",
            f"{sys.executable} -m elastrain.trainers.launching.ray_sweep {tag}",
        )
        ray_jobs.submit(launch)
        wait_for(ray_jobs, launch.submission_id, *ENDED)
        found = receipts.read(receipt_line.find(ray_jobs.logs(launch.submission_id)))
        assert found is not None and receipts.open_points(found) == ""
        (node,) = found["nodes"]
        assert (node["node"], node["pids"]) == (the_node(ray_jobs).id, [orphan.pid])
        assert orphan.wait(5) == -signal.SIGKILL
    assert ray_jobs.logs("abc123-j-0000000000-1-sweep-2") == ""


def test_a_cluster_is_known_by_its_session(ray_jobs: RayJobs) -> None:
    assert ray_jobs.session().startswith("session_") and ray_jobs.session() == ray_jobs.session()


def test_nodes_are_told_with_what_they_have(ray_jobs: RayJobs) -> None:
    assert ray_jobs.version().startswith("2.")
    node = the_node(ray_jobs)
    assert node.resources["CPU"] == 2
    assert not any(name.startswith("node:") for name in node.resources)
    deadline = time.monotonic() + 30
    while not (used := the_node(ray_jobs).used):  # the autoscaler writes it every few seconds
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert used["CPU"] == 0 and set(used) <= set(node.resources)


def test_a_wrong_token_and_a_wrong_address_are_told_apart(
    ray_head: RayHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RayJobs("http://127.0.0.1:9")) as nowhere, pytest.raises(RayUnreachable, match="refused"):
        nowhere.jobs()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "not-the-token")
    with closing(RayJobs(ray_head.address)) as strange, pytest.raises(RayUnreachable, match="token"):
        strange.jobs()

"""Which node a group of workers goes to on a Ray of several, and what happens when one is taken away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrain.service.up_ray import RayHead
from elastrain.trainers.membership.messages import Notice
from elastrain.trainers.pod_stop import commands_here, node_id, ray_drains
from elastrain.trainers.spec.resources import Resources, worker_takes
from launched import JOB, Coordinator, Launched, wait_for
from raylets import Raylet

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("connected"), pytest.mark.timeout(180)]


@pytest.fixture
def odd_node(ray_head: RayHead) -> Iterator[str]:
    """A node of a kind of its own, with 4 GB for workers; -> its id."""
    labels, memory = {"disk": "nvme"}, 4 * 10**9
    home = ray_head.log_file.parent.parent
    node = Raylet(home, cpus=2, resources={"licence": 2}, memory=memory, labels=labels)
    try:
        yield node.joined().id
    finally:
        node.kill()
        node.gone()


def test_workers_go_where_the_memory_the_label_and_the_resource_are_and_no_further_than_these_last(
    tmp_path: Path, coordinator: Coordinator, odd_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a spec asks for them, one by one."""
    from elastrain.trainers.launching import ray_launcher

    monkeypatch.setattr(ray_launcher, "START_TIMEOUT_S", 10.0)  # for what never comes: the room is there
    labels = {"disk": "nvme"}
    ways: dict[str, dict[str, Any]] = {
        "memory": {"cpu": 0.5, "memory": "3G", "labels": labels},
        "licence": {"cpu": 0.5, "custom": {"licence": 1.5}},
        "label disk=nvme": {"cpu": 1.5, "labels": labels},
    }
    for number, (short, asked) in enumerate(ways.items()):
        said = Resources.model_validate(asked).model_dump(mode="json")
        takes = worker_takes(said)
        launched = Launched(tmp_path / short, coordinator, takes.pop("CPU"), said["labels"], **takes)
        first, second = f"w4{number}", f"w5{number}"
        launched.start(f"g4{number}", first)
        wait_for(lambda first=first: first in coordinator.connections)
        assert json.loads(coordinator.said[first])["node"] == odd_node
        launched.start(f"g5{number}", second)
        why = launched.wait_ended(f"g5{number}")[second]
        assert "no node has room for" in why and short in why
        assert second not in coordinator.connections
        coordinator.dismiss(first)
        launched.wait_ended(f"g4{number}")
        launched.launcher.close()


@pytest.fixture(scope="module")
def spot_node(ray_head: RayHead) -> Iterator[str]:
    """A second node, that may be taken away; -> its id."""
    node = Raylet(ray_head.log_file.parent.parent, resources={"spot": 1})
    try:
        yield node.joined().id
    finally:
        node.kill()
        node.gone()


def test_a_group_goes_to_the_node_that_has_room_when_another_job_fills_the_larger_one(
    tmp_path: Path, coordinator: Coordinator, spot_node: str
) -> None:
    """Two cores on the head, one on the other node. A launcher knows what it has placed itself, and of others
    only what Ray says is free."""
    import ray
    from elastrain.trainers.launching.ray_nodes import living_nodes

    head = ray.get_runtime_context().get_node_id()

    def free() -> float:
        return next((node.free or {}).get("CPU", 0.0) for node in living_nodes() if node.id == head)

    wait_for(lambda: free() >= 1)  # of what ended before, Ray hears late
    one = Launched(tmp_path / "one", coordinator, free(), {"ray.io/node-id": head}, attempt=2)
    one.start("g30", "w30")
    wait_for(lambda: "w30" in coordinator.connections and free() < 1)
    two = Launched(tmp_path / "two", coordinator, 1.0, attempt=3)
    two.start("g31", "w31")
    wait_for(lambda: "w31" in coordinator.connections)
    registered = json.loads(coordinator.said["w31"])
    assert registered["node"] == spot_node, "by its own count the head has more room, and would be taken"
    for launched, group, worker in ((one, "g30", "w30"), (two, "g31", "w31")):
        coordinator.dismiss(worker)
        launched.wait_ended(group)
        launched.launcher.close()


def test_every_node_is_searched_and_one_that_is_gone_is_named(spot_node: str) -> None:
    import ray
    from elastrain.trainers.launching.ray_sweep import sweep_nodes

    gone, tag, here = "ab" * 28, f"test/{JOB}/2", ray.get_runtime_context().get_node_id()
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleep, env={**os.environ, "ELASTRAIN_ATTEMPT": tag}) as orphan:
        searched, unsearched = sweep_nodes(tag, [here, spot_node, gone], workers_only=False)
        assert {node["node"] for node in searched} == {here, spot_node} and unsearched == [gone]
        assert {pid for node in searched for pid in node["pids"]} == {orphan.pid}, "both are this machine"


def test_a_drained_node_gives_its_workers_a_notice_and_gets_no_new_ones(
    tmp_path: Path,
    coordinator: Coordinator,
    ray_head: Any,
    spot_node: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launched = Launched(tmp_path, coordinator, spot=0.5)
    launched.start("g20", "w20")
    wait_for(lambda: "w20" in coordinator.connections)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{ray_head.ports.gcs}")
    assert spot_node in {node_id([command]) for command in commands_here()}, "Ray's processes name it"
    ray_drains(spot_node, 60)  # as a pod does that is about to be stopped

    def notice() -> Notice | None:
        launched.look()
        return next(iter(launched.notices), None)

    told = wait_for(notice)
    assert (told.worker, told.why) == ("w20", f"Ray drains its node {spot_node[:8]}")
    assert 30.0 < told.grace_s <= 60.0
    launched.start("g21", "w21")
    coordinator.dismiss("w20")
    launched.wait_ended("g20")
    assert "w21" not in coordinator.connections, "there is no other node with what it needs"
    launched.launcher.close()

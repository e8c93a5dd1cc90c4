"""A cluster that is not what this version expects is named before a job fails on it."""

from __future__ import annotations

import json
import os
import platform
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from elastrain.service.cluster_check import RAY, differences, ours
from elastrain.trainers.launching import cluster_check, receipt_line
from world import ADMIN, World

SOUND = {"python": "3.11.9", "elastrain": "1", "ray": f"{RAY}0", "torch": "2.9.0", "storage": None}
HERE = {"python": "3.11.2", "elastrain": "1"}


def check(world: World) -> Any:
    return world.control.cluster(actor=ADMIN)["check"]


def test_a_cluster_is_looked_at_once_and_so_is_the_one_that_follows_it(world: World) -> None:
    assert check(world) is None
    for _ in range(3):
        world.round(3)
    assert check(world)["found"] == world.ray.installed and check(world)["differences"] == []
    assert world.control.readyz()["ready"]
    world.restart()
    for _ in range(3):
        world.round(3)
    assert len(world.ray.checks) == 1
    world.ray.begin_anew("session_2")
    for _ in range(3):
        world.round(3)
    assert len(world.ray.checks) == 2


def test_it_tells_ray_no_more_than_where_service_and_storage_are(world: World) -> None:
    world.round()
    ((id, launch),) = world.ray.checks.items()
    assert set(launch.env) == {"ELASTRAIN_DRIVER_URL", "ELASTRAIN_CHECK_STORAGE", "ELASTRAIN_CERTIFICATES"}
    assert "-check-" in id and world.ray.stops == [], "nor is it taken for a driver of a job"


def test_each_difference_is_named_by_readyz_and_nobody_waits_for_it(world: World) -> None:
    world.ray.installed |= {"ray": "2.59.1", "torch": None, "service": "ConnectError", "storage": "denied"}
    id = world.submit()
    for _ in range(3):
        world.round(3)
    ready = world.control.readyz()
    detail = ready["checks"]["ray"]["detail"]
    assert not ready["ready"] and "127.0.0.1" not in detail and "file:" not in detail
    for named in ("2.59.1", "torch is not installed", "ConnectError", "denied"):
        assert named in detail
    assert world.status(id) == "starting"


def test_ray_that_goes_away_meanwhile_is_asked_again(world: World) -> None:
    world.round()
    world.ray.trouble = "the connection was refused"
    world.round(3)
    assert check(world) is None
    world.ray.trouble = None
    world.round(3)
    assert check(world)["differences"] == []


def test_a_look_that_fails_says_how_and_is_no_reason_to_be_unready(world: World) -> None:
    world.ray.installed = None  # type: ignore[assignment]
    for _ in range(3):
        world.round(3)
    assert (check(world)["found"], check(world)["differences"]) == (None, [])
    assert "failed" in check(world)["detail"] and world.control.readyz()["ready"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"python": "3.12.1"}, ["Python is 3.12.1 on the cluster and 3.11.2 here"]),
        ({"elastrain": None}, ["elastrain is not installed on the cluster and 1 here"]),
        ({"ray": None}, [f"Ray is not installed on the cluster, and this version is made for {RAY}x"]),
        ({"torch": None}, ["torch is not installed on the cluster, where workers need it"]),
        ({"storage": "full"}, ["the object storage takes nothing from the cluster (full)"]),
    ],
)
def test_a_difference_is_a_sentence(change: dict[str, Any], said: list[str]) -> None:
    assert differences({**SOUND, **change}, HERE) == said


def test_the_version_of_ray_is_the_one_that_is_installed_with_this_one() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (wanted,) = (need for need in project["optional-dependencies"]["train"] if need.startswith("ray"))
    assert f">={RAY.rstrip('.')}," in wanted


def test_the_look_itself_sees_versions_writes_to_the_storage_and_calls_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster_check, "PAUSE_S", 0.0)
    place = {"url": (tmp_path / "objects").as_uri(), "options": {}}
    monkeypatch.setenv("ELASTRAIN_CHECK_STORAGE", json.dumps(place))
    monkeypatch.setenv("ELASTRAIN_DRIVER_URL", "http://127.0.0.1:9")
    assert cluster_check.main() == 0
    found = receipt_line.find(capsys.readouterr().out, receipt_line.CLUSTER)
    assert (found["python"], found["ray"]) == (platform.python_version(), version("ray"))
    assert found["elastrain"] == ours()["elastrain"]
    assert (found["storage"], found["service"]) == (None, "ConnectError")
    assert (tmp_path / "objects" / cluster_check.KEY).read_bytes() == b"ok"
    (tmp_path / "odd").write_text("in the way")
    monkeypatch.setenv("ELASTRAIN_CHECK_STORAGE", json.dumps({**place, "url": (tmp_path / "odd").as_uri()}))
    assert cluster_check.look(os.environ)["storage"] is not None

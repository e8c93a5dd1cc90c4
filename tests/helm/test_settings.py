"""The chart and the programs that it starts speak of the same settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import pytest

from elastrain.service.settings import Settings
from elastrain.trainers.training.sigterm import GRACE
from helm.rendering import (
    CHART,
    POSTGRES,
    ROOT,
    Rendered,
    containers,
    environment,
    pods,
    render,
    settings,
    with_values,
)

pytestmark = pytest.mark.helm

SAME = ("driver_python", "driver", "cancel_grace_s", "pause_grace_s")
EVERYTHING = {
    "settings": {"caBundleSecret": "ca"},
    "storage": {"url": "s3://bucket/prefix", "s3Endpoint": "http://minio:9000"},
}


class Asked(Mapping[str, str]):
    """An environment that remembers what it was asked for."""

    def __init__(self, held: Mapping[str, str] | None = None) -> None:
        self.held = dict(held or {})
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return self.held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def read_by_the_service() -> set[str]:
    asked = Asked()
    Settings.from_env(asked)
    return asked.names


def read_by_the_command_line() -> set[str]:
    client = (ROOT / "api/elastrain/client").glob("*.py")
    return {name for file in client for name in re.findall(r"ELASTRAIN_[A-Z_]+", file.read_text())}


def set_by(rendered: Rendered) -> Iterator[tuple[str, str]]:
    """(whose, name) of every variable of ours"""
    for name in settings(rendered):
        yield "Deployment", name
    for whose, pod in pods(rendered):
        for container in containers(pod):
            for name in environment(container):
                if name.startswith("ELASTRAIN_"):
                    yield whose, name


@pytest.mark.parametrize("values", [{}, EVERYTHING, with_values(POSTGRES, EVERYTHING)])
def test_every_variable_that_the_chart_sets_is_read_by_whom_it_is_set_for(values: dict[str, object]) -> None:
    known = {"test": read_by_the_command_line(), "ray": {GRACE}}
    seen = set()
    for whose, name in set_by(render(values)):
        reader = "test" if whose.endswith("-test") else "ray" if "-ray " in whose else "service"
        assert name in known.get(reader, read_by_the_service()), f"{whose} gets {name}, and nobody reads it"
        seen.add(reader)
    assert seen == {"test", "ray", "service"}


def test_every_variable_in_a_template_is_known_to_these_tests_or_to_nobody() -> None:
    """What only some values bring out is found by its text."""
    known = read_by_the_service() | read_by_the_command_line() | {GRACE}
    for file in (CHART / "templates").rglob("*.*"):
        for name in re.findall(r"ELASTRAIN_[A-Z_]+[A-Z]", file.read_text()):
            assert name in known or name == "ELASTRAIN_PORT", f"{file.name}: {name}"
    for file in (ROOT / "docker").glob("*"):
        for name in re.findall(r"ELASTRAIN_[A-Z_]+[A-Z]", file.read_text()):
            assert name in known | {"ELASTRAIN_VERSION"}, f"{file.name}: {name}"


def test_the_service_takes_the_settings_and_means_the_same_by_them() -> None:
    values = {
        "settings": {
            "driverCpu": 0.5,
            "driverMemory": 536870912,
            "driverPython": "/usr/bin/python3",
            "cancelGraceSeconds": 45,
            "claimTimeoutSeconds": 600,
            "pauseGraceSeconds": 1200,
            "rayDashboardUrl": "https://ray.example.com",
            "packageMaxMiB": 10,
            "keepEndedDays": 7,
        },
        "storage": {"url": "s3://bucket/prefix", "s3Endpoint": "http://minio:9000"},
        "ray": {
            "workerGroups": {
                "cpu": None,
                "big": {
                    "min": 0,
                    "max": 7,
                    "cpu": 4,
                    "memory": "2Gi",
                    "gpu": 2,
                    "customResources": {"nvme": 1},
                },
            }
        },
    }
    read = Settings.from_env(settings(render(values)))
    assert (read.driver, read.driver_python) == ({"CPU": 0.5, "memory": 2**29}, "/usr/bin/python3")
    assert (read.cancel_grace_s, read.claim_timeout_s, read.keep_ended_days) == (45.0, 600.0, 7.0)
    assert (read.pause_grace_s, read.dashboard_url) == (1200.0, "https://ray.example.com")
    assert read.package_max_bytes == 10 * 2**20
    assert (read.storage_url, read.storage_options) == (
        "s3://bucket/prefix",
        {"endpoint": "http://minio:9000"},
    )
    assert read.driver_url == "http://rel-elastrain.space.svc:80"
    assert read.ray_address == "http://rel-elastrain-ray-head-svc.space.svc:8265"
    [shape] = read.capacity_max
    assert shape.max == 7
    assert shape.resources == {"CPU": 4.0, "GPU": 2.0, "memory": 2.0 * 2**30, "nvme": 1.0}


def test_zero_and_false_are_values_and_null_leaves_the_services_own() -> None:
    own = Settings.from_env({})
    zero = render({"settings": {"cancelGraceSeconds": 0, "keepEndedDays": 0, "driverCpu": 0}})
    read = Settings.from_env(settings(zero))
    assert (read.cancel_grace_s, read.keep_ended_days, read.driver_cpu) == (0.0, 0.0, 0.0)
    null = Settings.from_env(settings(render({"settings": {"cancelGraceSeconds": None}})))
    assert null.cancel_grace_s == own.cancel_grace_s
    off = render({"ray": {"autoscaling": {"enabled": False}}})
    assert "ELASTRAIN_CAPACITY_MAX" not in settings(off), "what nobody adds is no capacity"
    assert off.one("RayCluster")["spec"]["enableInTreeAutoscaling"] is False
    none = render(with_values(POSTGRES, {"migrations": {"backoffLimit": 0}, "service": {"replicas": 0}}))
    assert none.one("Job")["spec"]["backoffLimit"] == 0
    assert none.one("Deployment")["spec"]["replicas"] == 0


def test_every_setting_of_the_service_can_be_said_in_the_chart() -> None:
    values = with_values(EVERYTHING, {"settings": {"rayDashboardUrl": "https://ray.example.com"}})
    said = {name for whose, name in set_by(render(with_values(POSTGRES, values)))}
    left = read_by_the_service() - said
    assert left == set(), f"give these a value in values.yaml and a line in templates/configmap.yaml: {left}"


def test_capacity_that_is_given_by_hand_wins_over_the_groups() -> None:
    given = [{"resources": {"CPU": 16, "GPU": 1}, "max": 8}]
    found = settings(render({"settings": {"capacityMax": given}}))["ELASTRAIN_CAPACITY_MAX"]
    assert json.loads(found) == given


def test_the_defaults_of_the_chart_are_those_of_the_service() -> None:
    ours, own = Settings.from_env(settings(render({}))), Settings.from_env({})
    for name in (*SAME, "claim_timeout_s", "keep_ended_days"):
        assert getattr(ours, name) == getattr(own, name), name
    assert ours.package_max_bytes == own.package_max_bytes

"""The chart is whole: it lints, all examples render and fit their schemas, the README is current."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import yaml

from helm.definitions import KUBERAY, MISSING
from helm.rendering import CHART, EXAMPLES, POSTGRES, ROOT, lint, render, script
from helm.schemas import check_defined, check_kubernetes

pytestmark = pytest.mark.helm

readme = script()
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
# everything that can be turned on at once, beside each example
ALL_ON: dict[str, Any] = {
    **POSTGRES,
    "service": {"replicas": 2},
    "ingress": {"enabled": True, "hosts": ["a.example.com"], "tlsSecret": "tls"},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["a.example.com"]},
    "autoscaling": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "metrics": {
        name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards")
    },
    "ray": {"faultTolerance": {"backend": "rocksdb"}},
}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "all on": ALL_ON,
    **{path.stem: yaml.safe_load(path.read_text()) for path in EXAMPLES},
}
each_case = pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())


@each_case
def test_helm_lint_finds_nothing(values: dict[str, Any]) -> None:
    assert lint(values) == []


@each_case
def test_it_renders_and_every_manifest_fits_its_schema(values: dict[str, Any]) -> None:
    """Every document is checked against exactly one schema: none passes for being unknown."""
    documents = render(values).documents
    assert len(documents) >= 5
    for document in documents:
        if document["kind"] == "RayCluster":
            continue  # below
        assert check_kubernetes(document) or check_defined(document), f"no schema for {document['kind']}"


@each_case
def test_the_ray_cluster_fits_the_definition_that_kuberay_publishes(values: dict[str, Any]) -> None:
    if not KUBERAY.exists():
        pytest.skip(MISSING)
    for cluster in render(values).all("RayCluster"):
        assert check_defined(cluster)


@pytest.mark.parametrize(
    "kind", ["RayCluster", "HTTPRoute", "ServiceMonitor", "PodMonitor", "PrometheusRule"]
)
def test_a_field_that_a_definition_does_not_know_is_refused(kind: str) -> None:
    if kind == "RayCluster" and not KUBERAY.exists():
        pytest.skip(MISSING)
    document = render(ALL_ON).one(kind)
    document["spec"]["odd"] = 1
    with pytest.raises(Exception, match="odd"):
        check_defined(document)


def test_every_value_has_its_line_and_the_readme_is_made_of_them() -> None:
    assert readme.undocumented((CHART / "values.yaml").read_text()) == []
    assert (CHART / "README.md").read_text() == readme.readme(), "run `make helm-readme`"


def test_the_schema_knows_every_value_and_refuses_every_other() -> None:
    for path, _ in readme.leaves(VALUES):
        here, free = SCHEMA, False
        for key in path.split("."):
            here = _resolved(here)
            if key not in here.get("properties", {}):
                free = "additionalProperties" in here and here["additionalProperties"] is not False
                free |= here.get("type") == ["object", "null"] and "properties" not in here
                assert free, f"values.schema.json does not know {path}"
                break
            assert here["additionalProperties"] is False, path
            here = here["properties"][key]


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    found: dict[str, Any] = SCHEMA["$defs"][name] if name else schema
    return found


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"service": {"replica": 3}}, "replica"),
        ({"service": {"replicas": "three"}}, "replicas"),
        ({"ray": {"workerGroups": {"cpu": {"cpu": 0}}}}, "cpu"),
        ({"ray": {"workerGroups": {"Big_Ones": {"max": 1, "cpu": 1, "memory": "1Gi"}}}}, "Big_Ones"),
        ({"ray": {"faultTolerance": {"backend": "etcd"}}}, "backend"),
        ({"storage": {"url": "/data"}}, "url"),
        ({"settings": {"cancelGraceSeconds": -1}}, "cancelGraceSeconds"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(Exception, match=named):
        render(values)


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        ({"service": {"replicas": 2}}, "database.existingSecret"),
        ({"service": {"processes": 2}}, "database.existingSecret"),
        ({"autoscaling": {"enabled": True}}, "database.existingSecret"),
        ({"database": {"existingSecret": "db"}}, "auth.existingSecret"),
        ({"ray": {"create": False}}, "ray.address"),
        ({"ray": {"create": False, "address": "http://ray:8265"}}, "ray.auth.existingSecret"),
        ({"ray": {"workerGroups": {"cpu": {"min": 3, "max": 2}}}}, "min is 3 and max 2"),
        ({"ray": {"auth": {"existingSecret": "s", "key": "token"}}}, "KubeRay reads auth_token"),
        ({"ray": {"faultTolerance": {"backend": "redis"}}}, "redis.address"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "tokenSecret"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(values: dict[str, Any], remedy: str) -> None:
    with pytest.raises(Exception, match=remedy):
        render(values)


def test_chart_and_program_have_one_version_and_the_images_ray_is_the_one_that_is_tested() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    assert f"ray=={VALUES['ray']['version']}\n" in (ROOT / "docker/ray.txt").read_text()

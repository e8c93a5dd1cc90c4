"""What went wrong with other charts: upgrades, long names, two releases, changed labels."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.rendering import CHART, EXAMPLES, POSTGRES, Rendered, pods, render, with_values

pytestmark = pytest.mark.helm

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
LONGEST = 63
# KubeRay's own limit, and what it adds to a cluster's name
RAY_LONGEST = 53
ALL = with_values(
    POSTGRES,
    {
        "ingress": {"enabled": True},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]},
        "networkPolicy": {"enabled": True},
        "metrics": {
            name: {"enabled": True}
            for name in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards")
        },
    },
)


def keys(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key, at any depth."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield (*path, key)
            yield from keys(value, (*path, key))


def absent(path: tuple[str, ...]) -> dict[str, Any]:
    """Values in which that key is not there: null takes a default away."""
    return {path[0]: None if len(path) == 1 else absent(path[1:])}


GROUPS = ("ray", "workerGroups")
# no release was ever without these; a group of workers has to say what its workers are
NEEDED = {("ray",), ("ray", "address"), ("ray", "create")}
PATHS = [path for path in keys(VALUES) if (path not in NEEDED and path[:2] != GROUPS) or path == GROUPS]


def test_an_upgrade_with_reuse_values_works_though_a_key_is_new() -> None:
    """`helm upgrade --reuse-values` takes the old release's values whole: what this version added is missing.
    Whatever key is taken to be the new one, the chart renders."""
    for path in PATHS:
        # the smallest release, or one with everything on; without `database` that would be another kind
        values = {} if path[0] in ("database", "auth", "storage", "tests") else ALL
        rendered = render(with_values(values, absent(path)))
        assert "<no value>" not in str(rendered.documents), ".".join(path)
        assert rendered.one("Deployment"), ".".join(path)


def test_two_releases_in_one_namespace_share_no_object_and_select_no_pod_of_each_other() -> None:
    one, two = render(ALL, release="one"), render(ALL, release="two")
    assert not names(one) & names(two)
    for first, second in ((one, two), (two, one)):
        others = [pod["metadata"]["labels"] for _, pod in pods(second)]
        for selector in selectors(first):
            assert not any(set(selector.items()) <= set(labels.items()) for labels in others), selector


def test_two_releases_of_one_name_in_two_namespaces_meet_nowhere() -> None:
    for namespace in ("first", "second"):
        rendered = render(ALL, namespace=namespace)
        assert {document["metadata"]["namespace"] for document in rendered.documents} == {namespace}
        text = str(rendered.documents)
        other = "second" if namespace == "first" else "first"
        assert f"{other}.svc" not in text and f"{namespace}.svc" in text


def names(rendered: Rendered) -> set[tuple[str, str]]:
    return {(document["kind"], document["metadata"]["name"]) for document in rendered.documents}


def selectors(rendered: Rendered) -> Iterator[dict[str, str]]:
    for document in rendered.documents:
        spec = document.get("spec", {})
        if document["kind"] == "Service":
            yield spec["selector"]
        elif document["kind"] in ("Deployment", "PodDisruptionBudget", "ServiceMonitor", "PodMonitor"):
            yield spec["selector"]["matchLabels"]
        elif document["kind"] == "NetworkPolicy":
            yield spec["podSelector"]["matchLabels"]


@pytest.mark.parametrize(
    ("release", "values"),
    [
        ("r" * 53, {}),
        ("rel", {"fullnameOverride": "f" * 63}),
        ("rel", {"nameOverride": "n" * 63}),
        ("1st", {}),
        ("a-" * 26 + "a", {}),
        ("my.release", {}),
    ],
)
def test_no_name_is_too_long_or_begins_with_a_digit_and_all_of_them_are_found(
    release: str, values: dict[str, Any]
) -> None:
    rendered = render(with_values(ALL, values), release=release)
    for document in rendered.documents:
        name = document["metadata"]["name"]
        assert len(name) <= LONGEST and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        for label in document["metadata"]["labels"].values():
            assert len(label) <= LONGEST
    cluster = rendered.one("RayCluster")["metadata"]["name"]
    assert len(cluster) <= RAY_LONGEST and len(f"{cluster}-head-svc") <= LONGEST
    address = rendered.one("ConfigMap", rendered.one("Deployment")["metadata"]["name"])["data"]
    assert f"http://{cluster}-head-svc." in address["ELASTRAIN_RAY_ADDRESS"]
    assert f"http://{rendered.one('Service')['metadata']['name']}." in address["ELASTRAIN_DRIVER_URL"]


def test_two_long_names_that_begin_alike_stay_two() -> None:
    first, second = (render({"fullnameOverride": "x" * 60 + end}) for end in ("aaa", "bbb"))
    assert not names(first) & names(second)


def test_what_kubernetes_lets_nobody_change_does_not_change_on_an_upgrade(tmp_path: Path) -> None:
    """Selectors and claims are immutable: a new version or another label must not touch them."""
    before = render(ALL)
    changed = {
        "common": {"labels": {"team": "other"}, "podAnnotations": {"a": "b"}},
        "service": {"podLabels": {"x": "y"}, "replicas": 5, "image": {"tag": "9.9.9"}},
    }
    after = render(with_values(ALL, changed))
    newer = _copy(tmp_path)
    chart = yaml.safe_load((newer / "Chart.yaml").read_text())
    (newer / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "7.0.0", "appVersion": "7.0.0"}))
    upgraded = render(ALL, chart=newer)
    for rendered in (after, upgraded):
        assert list(selectors(rendered)) == list(selectors(before))
        assert names(rendered) == names(before)
    version = upgraded.one("Deployment")["metadata"]["labels"]["app.kubernetes.io/version"]
    assert version == "7.0.0"


def _copy(folder: Path) -> Path:
    """The chart, to be changed."""
    return Path(shutil.copytree(CHART, folder / "elastrain"))


def test_no_secret_is_made_so_none_can_change_on_an_upgrade() -> None:
    for values in ({}, ALL, *(yaml.safe_load(path.read_text()) for path in EXAMPLES)):
        assert not render(values).all("Secret")
    for file in (CHART / "templates").rglob("*.*"):
        assert not re.search(
            r"rand(Alpha|Numeric|Ascii|Bytes|Int)|uuidv4|genCA|genSigned|derivePassword|\bnow\b",
            file.read_text(),
        ), f"{file.name}: what is random is another value on every upgrade"
    assert render(ALL).documents == render(ALL).documents


def test_a_changed_setting_rolls_the_pods_and_nothing_else_does() -> None:
    def checksum(values: dict[str, Any]) -> str:
        template = render(with_values(ALL, values)).one("Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert checksum({"settings": {"keepEndedDays": 3}}) != checksum({})
    assert checksum({"ray": {"workerGroups": {"cpu": {"max": 9}}}}) != checksum({}), (
        "the ceiling is a setting"
    )
    assert checksum({"ingress": {"hosts": ["other.org"]}}) == checksum({})


LOOKUP = 'lookup "ray.io/v1" "RayCluster" .Release.Namespace (include "elastrain.rayClusterName" .)'


@pytest.mark.parametrize(("there", "kept"), [(None, 1), (0, 1), (1, 1), (7, 7), (9, 8)])
def test_workers_that_train_are_not_taken_away_by_an_upgrade(
    there: int | None, kept: int, tmp_path: Path
) -> None:
    """`replicas` is the autoscaler's: what the cluster has is kept, within the group's bounds.

    Nothing can be looked up where there is no cluster, so a copy of the chart is told what there is.
    """
    live = {"spec": {"workerGroupSpecs": [{"groupName": "other", "replicas": 3}]}}
    if there is not None:
        going = {"workersToDelete": ["w-1"]}
        live["spec"]["workerGroupSpecs"].append(
            {"groupName": "cpu", "replicas": there, "scaleStrategy": going}
        )
    told = _copy(tmp_path)
    template = told / "templates/_ray.tpl"
    assert LOOKUP in template.read_text()
    template.write_text(template.read_text().replace(LOOKUP, ".Values.global.live"))

    def workers(**ray: Any) -> dict[str, Any]:
        groups = {"cpu": {"min": 1, "max": 8}}
        values = {"global": {"live": live}, "ray": {"workerGroups": groups, **ray}}
        [group] = render(values, chart=told).one("RayCluster")["spec"]["workerGroupSpecs"]
        return dict(group)

    group = workers()
    assert group["replicas"] == kept
    assert group.get("scaleStrategy") == (None if there is None else {"workersToDelete": ["w-1"]})
    without = workers(autoscaling={"enabled": False})
    assert without["replicas"] == 1, "without one, the values say how many"
    assert "scaleStrategy" not in without


def test_objects_that_hold_data_outlive_the_release_unless_told_otherwise() -> None:
    claims = render({}).all("PersistentVolumeClaim")
    assert len(claims) == 2
    assert all(c["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for c in claims)
    gone = {"database": {"volume": {"keep": False}}, "storage": {"volume": {"keep": False}}}
    assert all("annotations" not in c["metadata"] for c in render(gone).all("PersistentVolumeClaim"))
    mine = {"database": {"volume": {"existingClaim": "a"}}, "storage": {"volume": {"existingClaim": "b"}}}
    assert not render(mine).all("PersistentVolumeClaim")

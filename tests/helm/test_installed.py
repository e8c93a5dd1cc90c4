"""The chart on a real Kubernetes API server: what it takes, who may do what, what an upgrade does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm import apiserver, definitions
from helm.apiserver import Cluster, Refused, named
from helm.releases import Release
from helm.rendering import CHART, EXAMPLES, POSTGRES, pods, render, with_values

pytestmark = [pytest.mark.helm, pytest.mark.timeout(300)]

NUMBERS = count()
OLDEST = (1, 29)  # of Chart.yaml
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
EVERYTHING: dict[str, Any] = with_values(
    POSTGRES,
    {
        "service": {"replicas": 2},
        "ingress": {"enabled": True, "hosts": ["a.example.com"], "tlsSecret": "tls"},
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["a.example.com"]},
        "networkPolicy": {
            "enabled": True,
            "clients": [{"podSelector": {"matchLabels": {"app": "web"}}}],
            "monitoring": [{"namespaceSelector": {}}],
        },
        "metrics": {
            name: {"enabled": True}
            for name in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboards")
        },
        "ray": {"faultTolerance": {"backend": "rocksdb"}},
    },
)
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "autoscaled": with_values(EVERYTHING, {"autoscaling": {"enabled": True}}),
    **{path.stem: yaml.safe_load(path.read_text()) for path in EXAMPLES},
}
each_case = pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with apiserver.running() as found:
        if found is None:
            pytest.skip(apiserver.MISSING)
        if not definitions.KUBERAY.exists():
            pytest.skip(definitions.MISSING)
        if found.version < OLDEST:
            pytest.skip(f"this API server is {found.version}, the chart wants {OLDEST}: {apiserver.MISSING}")
        for definition in definitions.known().values():
            found.define(definition)
        nvidia = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        found.create({**nvidia, "handler": "nvidia"})
        yield found


@pytest.fixture
def space(cluster: Cluster) -> str:
    """A namespace that takes restricted pods only."""
    return cluster.namespace(f"space-{next(NUMBERS)}", RESTRICTED)


@pytest.fixture
def release(cluster: Cluster, space: str) -> Release:
    return Release(cluster, space)


def copied(folder: Path) -> Path:
    """The chart, to be changed."""
    return Path(shutil.copytree(CHART, folder / "elastrain"))


# ---- what the API server takes


@each_case
def test_the_api_server_takes_every_manifest_and_knows_every_field_of_it(
    cluster: Cluster, space: str, values: dict[str, Any]
) -> None:
    """Hooks and the test's pod among them: Helm would send those without asking about their fields."""
    documents = render(values, namespace=space).documents
    accounts = [document for document in documents if document["kind"] == "ServiceAccount"]
    for document in [*accounts, *(d for d in documents if d["kind"] != "ServiceAccount")]:
        cluster.create(document, dry_run=document["kind"] != "ServiceAccount")


def test_a_field_that_nobody_knows_is_refused_whatever_the_kind(cluster: Cluster, space: str) -> None:
    for document in render(EVERYTHING, namespace=space).documents:
        if "spec" in document:
            document["spec"]["odd"] = 1
            with pytest.raises(Refused, match=r"odd|not supported"):
                cluster.create(document, dry_run=True)


@each_case
def test_an_install_leaves_every_object_as_it_was_asked_for(release: Release, values: dict[str, Any]) -> None:
    release.install(values)
    documents = list(release.documents())
    assert len(documents) >= 5
    for document in documents:
        found = release.cluster.get(document)
        assert found is not None, document["metadata"]["name"]
        assert within(document.get("spec", {}), found.get("spec", {})) == [], document["kind"]


def within(asked: Any, found: Any, path: str = "") -> list[str]:
    """Where what is there is not what was asked for; defaults may be added."""
    if isinstance(asked, dict) and isinstance(found, dict):
        return [w for key, value in asked.items() for w in within(value, found.get(key), f"{path}.{key}")]
    if isinstance(asked, list) and isinstance(found, list) and len(asked) == len(found):
        return [
            w for n, (a, b) in enumerate(zip(asked, found, strict=True)) for w in within(a, b, f"{path}[{n}]")
        ]
    same = asked == found or str(asked) == str(found) or asked in (None, {}, [])
    return [] if same else [f"{path}: {asked!r} became {found!r}"]


@each_case
def test_a_namespace_that_enforces_the_restricted_standard_takes_every_pod(
    release: Release, values: dict[str, Any]
) -> None:
    release.install(values)
    found = list(pods(render(values, namespace=release.namespace)))
    assert len(found) >= 2
    for number, (_, pod) in enumerate(found):
        about = {**pod["metadata"], "name": f"pod-{number}", "namespace": release.namespace}
        release.cluster.create({"apiVersion": "v1", "kind": "Pod", **pod, "metadata": about}, dry_run=True)


def test_that_namespace_takes_no_other_pod(cluster: Cluster, space: str) -> None:
    [(_, pod), *_] = pods(render({}, namespace=space))
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    pod["spec"]["serviceAccountName"] = "default"
    pod["metadata"] |= {"name": "pod", "namespace": space}
    with pytest.raises(Refused, match="restricted"):
        cluster.create({"apiVersion": "v1", "kind": "Pod", **pod}, dry_run=True)


# ---- who may do what


def test_the_head_may_look_at_pods_and_size_ray_clusters_in_its_namespace_and_nobody_may_more(
    release: Release,
) -> None:
    release.install(EVERYTHING)
    here, cluster = release.namespace, release.cluster
    nothing = cluster.rules(f"{here}:default", here)
    autoscaler = {("", "pods", verb) for verb in ("get", "list", "watch")}
    autoscaler |= {("ray.io", "rayclusters", verb) for verb in ("get", "patch")}
    allowed = {"": set(), "-ray-worker": set(), "-ray-head": autoscaler}
    for ending, rules in allowed.items():
        assert cluster.rules(f"{here}:rel-elastrain{ending}", here) - nothing == rules, ending


def test_kubectl_says_the_same_and_no_for_every_other_namespace(release: Release, cluster: Cluster) -> None:
    release.install({})
    here, elsewhere = release.namespace, cluster.namespace(f"elsewhere-{next(NUMBERS)}")
    head = f"{here}:rel-elastrain-ray-head"
    assert cluster.may(head, "list", "pods", here) and cluster.may(head, "patch", "rayclusters.ray.io", here)
    for verb, resource in (
        *((verb, "secrets") for verb in ("get", "list", "create")),
        *((verb, "pods") for verb in ("create", "delete", "patch")),
        *(("create", resource) for resource in ("pods/exec", "serviceaccounts/token", "rolebindings")),
        ("delete", "rayclusters.ray.io"),
    ):
        assert not cluster.may(head, verb, resource, here), (verb, resource)
    for account in (head, f"{here}:rel-elastrain", f"{here}:rel-elastrain-ray-worker"):
        assert not cluster.may(account, "list", "pods", elsewhere)
        assert not cluster.may(account, "get", "rayclusters.ray.io", elsewhere)
        assert not cluster.may(account, "get", "nodes", elsewhere)


# ---- hooks


def test_the_database_is_migrated_before_anything_of_the_release_is_there(release: Release) -> None:
    stage = release.install(POSTGRES)
    [job] = stage.seen
    assert job["kind"] == "Job" and stage.meanwhile == []
    assert release.live("apps/v1", "Deployment")
    assert release.cluster.list("batch/v1", "Job", release.namespace) == [], (
        "it is gone once it has succeeded"
    )


def test_a_migration_that_fails_leaves_the_old_pods_and_the_next_try_can_succeed(release: Release) -> None:
    release.install(POSTGRES)
    before = release.live("apps/v1", "Deployment")["spec"]
    newer = with_values(POSTGRES, {"service": {"image": {"tag": "9.9.9"}}})
    with pytest.raises(Exception, match="migrations"):
        release.upgrade(newer, well=False)
    assert release.live("apps/v1", "Deployment")["spec"] == before
    release.upgrade(newer)
    [container] = release.live("apps/v1", "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(":9.9.9")


@pytest.mark.parametrize("values", [{}, POSTGRES], ids=["sqlite", "postgresql"])
def test_helm_test_makes_its_pod_and_says_how_that_ended(release: Release, values: dict[str, Any]) -> None:
    release.install(values)
    [pod] = release.test().seen
    assert pod["metadata"]["name"] == "rel-elastrain-test"
    with pytest.raises(Exception, match="rel-elastrain-test"):
        release.test(well=False)


# ---- upgrades


def test_an_upgrade_to_the_same_changes_nothing(release: Release) -> None:
    release.install(EVERYTHING)
    before = {d["metadata"]["name"] + d["kind"]: release.cluster.get(d) for d in release.documents()}
    release.upgrade(EVERYTHING)
    for document in release.documents():
        old, new = before[document["metadata"]["name"] + document["kind"]], release.cluster.get(document)
        assert old and new and old.get("spec") == new.get("spec"), document["kind"]


def test_nothing_that_may_be_changed_in_the_values_is_immutable_in_the_cluster(release: Release) -> None:
    release.install(EVERYTHING)
    changed = with_values(
        EVERYTHING,
        {
            "common": {"labels": {"team": "other"}, "podAnnotations": {"a": "b"}, "nodeSelector": {"x": "y"}},
            "service": {"podLabels": {"x": "y"}, "replicas": 5, "image": {"tag": "9.9.9"}},
            "ingress": {"className": "nginx", "hosts": ["b.example.com"]},
            "httpRoute": {"hostnames": ["b.example.com"], "timeout": "30s"},
            "podDisruptionBudget": {"maxUnavailable": 2},
            "metrics": {"serviceMonitor": {"interval": "60s"}, "podMonitor": {"interval": "60s"}},
            "ray": {"workerGroups": {"more": {"min": 0, "max": 3, "cpu": 1, "memory": "1Gi"}}},
        },
    )
    release.upgrade(changed)
    release.rollback()
    release.upgrade(with_values(changed, {"autoscaling": {"enabled": True}}))
    release.upgrade(EVERYTHING)


def test_a_new_version_of_the_chart_takes_over_with_the_old_releases_values(
    release: Release, tmp_path: Path
) -> None:
    """`--reuse-values`: what the version before did not know is missing."""
    older = copied(tmp_path)
    values = yaml.safe_load((older / "values.yaml").read_text())
    for key in (
        "tracing",
        "tests",
        "httpRoute",
        "podDisruptionBudget",
        "networkPolicy",
        "migrations",
        "metrics",
    ):
        values.pop(key)
    (older / "values.yaml").write_text(yaml.safe_dump(values))
    chart = yaml.safe_load((older / "Chart.yaml").read_text())
    (older / "Chart.yaml").write_text(yaml.safe_dump({**chart, "version": "0.0.1", "appVersion": "0.0.1"}))
    mine = {"service": {"podLabels": {"mine": "kept"}}}
    release.install(with_values(POSTGRES, mine), chart=older)
    release.upgrade({}, reuse_values=True)
    template = release.live("apps/v1", "Deployment")["spec"]["template"]
    assert template["metadata"]["labels"]["mine"] == "kept"
    assert not template["spec"]["containers"][0]["image"].endswith(":0.0.1")


def test_a_laptop_becomes_production_and_goes_back(release: Release) -> None:
    """SQLite and Recreate to PostgreSQL and a rolling update: the API server allows no mixture of the two."""
    release.install({})
    release.upgrade(EVERYTHING)
    assert release.live("apps/v1", "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"
    release.upgrade({"service": {"replicas": 1}})  # with no value at all Helm takes the last release's
    assert release.live("apps/v1", "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_an_upgrade_leaves_the_autoscaler_what_it_has_written(release: Release) -> None:
    """The list of worker groups is one value to the API server: whoever changed it last owns it, and Helm is
    told of a conflict unless it says the same."""
    values = {"ray": {"workerGroups": {"cpu": {"min": 1, "max": 8}}}}
    release.install(values)
    live = release.live("ray.io/v1", "RayCluster", "-ray")
    scaled = {"replicas": 7, "scaleStrategy": {"workersToDelete": ["rel-elastrain-ray-cpu-worker-abcde"]}}
    groups = [{**group, **scaled} for group in live["spec"]["workerGroupSpecs"]]
    release.cluster.patch(live, {"spec": {"workerGroupSpecs": groups}})  # as the autoscaler does
    release.upgrade(with_values(values, {"service": {"image": {"tag": "9.9.9"}}}))
    assert release.live("ray.io/v1", "RayCluster", "-ray")["spec"]["workerGroupSpecs"] == groups
    [container] = release.live("apps/v1", "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"].endswith(":9.9.9")
    with pytest.raises(Exception, match="conflict"):  # docs/kubernetes.md: --force-conflicts
        release.upgrade(with_values(values, {"ray": {"image": {"tag": "9.9.9"}}}))


def test_secrets_are_never_the_releases(release: Release) -> None:
    cluster, space = release.cluster, release.namespace
    mine = {**named("v1", "Secret", "admin", space), "stringData": {"admin-token": "t" * 32}}
    before = cluster.create(mine)
    release.install(EVERYTHING)
    release.upgrade(with_values(EVERYTHING, {"common": {"labels": {"a": "b"}}}))
    release.uninstall()
    assert cluster.get(mine) == before
    left = [s["metadata"]["name"] for s in cluster.list("v1", "Secret", space)]
    assert left == ["admin"], "Helm's own records go with the release"


def test_volumes_with_jobs_in_them_outlive_the_release_and_serve_the_next(release: Release) -> None:
    release.install({})
    before = claims(release)
    assert set(before) == {"rel-elastrain-home", "rel-elastrain-objects"}
    release.uninstall()
    release.install({})
    assert claims(release) == before


def claims(release: Release) -> dict[str, str]:
    """{name: identity} of the volumes that are there and stay."""
    found = release.cluster.list("v1", "PersistentVolumeClaim", release.namespace)
    staying = [claim["metadata"] for claim in found if "deletionTimestamp" not in claim["metadata"]]
    return {about["name"]: about["uid"] for about in staying}


# ---- several releases


def test_two_releases_share_a_namespace_and_one_goes_without_the_other(cluster: Cluster, space: str) -> None:
    one, two = Release(cluster, space, "one"), Release(cluster, space, "two")
    one.install(EVERYTHING)
    two.install(EVERYTHING)
    theirs = list(two.documents())
    one.uninstall()
    for document in theirs:
        found = cluster.get(document)
        assert found is not None and "deletionTimestamp" not in found["metadata"], document["metadata"][
            "name"
        ]
    two.upgrade(EVERYTHING)


def test_two_releases_of_one_name_live_in_two_namespaces(cluster: Cluster, space: str) -> None:
    one, two = (
        Release(cluster, space),
        Release(cluster, cluster.namespace(f"other-{next(NUMBERS)}", RESTRICTED)),
    )
    one.install(EVERYTHING)
    two.install(EVERYTHING)
    for release, other in ((one, two), (two, one)):
        head = f"{release.namespace}:rel-elastrain-ray-head"
        assert cluster.may(head, "patch", "rayclusters.ray.io", release.namespace)
        assert not cluster.may(head, "patch", "rayclusters.ray.io", other.namespace)


@pytest.mark.parametrize("name", ["r" * 53, "1st", "a-" * 26 + "a", "my.release"])
def test_any_name_that_helm_takes_is_one_that_kubernetes_takes(
    cluster: Cluster, space: str, name: str
) -> None:
    Release(cluster, space, name).install(EVERYTHING)

"""What every pod is: not root, nothing writable but what must be, where it was told to be."""

from __future__ import annotations

from typing import Any

import pytest

from helm.rendering import POSTGRES, Rendered, containers, environment, pods, render, with_values

pytestmark = pytest.mark.helm

WRITABLE = {"/tmp", "/dev/shm", "/home/elastrain", "/var/lib/elastrain", "/var/lib/elastrain-objects"}
KINDS = {
    "service": "rel-elastrain",
    "migrations": "rel-elastrain-migrations",
    "test": "rel-elastrain-test",
    "head": "rel-elastrain-ray head",
    "worker": "rel-elastrain-ray cpu",
}


def everything(*more: dict[str, Any]) -> Rendered:
    return render(with_values(POSTGRES, *more))


def by_kind(rendered: Rendered) -> dict[str, dict[str, Any]]:
    found = dict(pods(rendered))
    assert set(found) == set(KINDS.values())
    return {kind: found[name] for kind, name in KINDS.items()}


@pytest.mark.parametrize("values", [{}, POSTGRES])
def test_no_container_is_root_or_may_become_it_or_writes_its_own_files(values: dict[str, Any]) -> None:
    for whose, pod in pods(render(values)):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, whose
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, whose
        for container in containers(pod):
            may = container["securityContext"]
            assert may["runAsNonRoot"] and may["readOnlyRootFilesystem"], whose
            assert may["allowPrivilegeEscalation"] is False and may["privileged"] is False, whose
            assert may["capabilities"] == {"drop": ["ALL"]}, whose
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert "/tmp" in mounts, f"{whose}: a program without a place for temporary files fails"
            for path, mount in mounts.items():
                assert mount.get("readOnly") or path in WRITABLE, f"{whose}: {path}"
            volumes = {volume["name"] for volume in spec["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes, whose


def test_the_autoscaler_that_kuberay_adds_is_hardened_too() -> None:
    options = render({}).one("RayCluster")["spec"]["autoscalerOptions"]
    assert options["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "tmp", "mountPath": "/tmp"} in options["volumeMounts"]
    assert options["version"] == "v2"


def test_a_secret_on_a_volume_is_not_for_everybodys_eyes() -> None:
    rendered = everything({"storage": {"url": "s3://b/p", "existingSecret": "keys"}})
    for whose, pod in pods(rendered):
        for volume in pod["spec"]["volumes"]:
            if "secret" in volume:
                assert volume["secret"]["defaultMode"] == 0o440, whose


def test_on_a_cluster_that_hands_out_user_ids_none_is_asked_for() -> None:
    """OpenShift: null takes a default away."""
    none = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    for whose, pod in pods(everything({"common": {"podSecurityContext": none}})):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["spec"]["securityContext"]), whose
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


def test_no_pod_gets_variables_from_a_service_that_happens_to_be_called_elastrain() -> None:
    """Kubernetes would set ELASTRAIN_PORT=tcp://... and the like, which look like settings."""
    for whose, pod in pods(everything()):
        assert pod["spec"]["enableServiceLinks"] is False, whose


def test_only_the_head_with_an_autoscaler_may_speak_to_kubernetes() -> None:
    for kind, pod in by_kind(everything()).items():
        assert pod["spec"]["automountServiceAccountToken"] is (kind == "head")
    off = by_kind(everything({"ray": {"autoscaling": {"enabled": False}}}))
    assert off["head"]["spec"]["automountServiceAccountToken"] is False


def test_the_rules_are_what_the_autoscaler_uses_and_no_more() -> None:
    rendered = everything()
    allowed = {
        (group, resource, verb)
        for role in rendered.all("Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        ("", "pods", "get"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("ray.io", "rayclusters", "get"),
        ("ray.io", "rayclusters", "patch"),
    }
    assert not rendered.all("ClusterRole") and not rendered.all("ClusterRoleBinding")
    binding = rendered.one("RoleBinding")
    head = by_kind(rendered)["head"]["spec"]["serviceAccountName"]
    assert [subject["name"] for subject in binding["subjects"]] == [head]
    assert {account["metadata"]["name"] for account in rendered.all("ServiceAccount")} >= {head}


PLACES = {
    "nodeSelector": {"own": "yes"},
    "tolerations": [{"key": "own", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "own",
    "podAnnotations": {"own": "yes"},
    "env": [{"name": "OWN", "value": "yes"}],
}
COMMON = {
    "nodeSelector": {"all": "yes"},
    "tolerations": [{"key": "all", "operator": "Exists"}],
    "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "all",
    "podAnnotations": {"all": "yes"},
    "env": [{"name": "ALL", "value": "yes"}],
    "imagePullSecrets": [{"name": "pull"}],
    "labels": {"team": "all"},
}
PARTS = {
    "service": lambda own: {"service": own},
    "migrations": lambda own: {"migrations": own},
    "test": lambda own: {"tests": own},
    "head": lambda own: {"ray": {"head": own}},
    "worker": lambda own: {"ray": {"workerGroups": {"cpu": own}}},
}


def shown(pod: dict[str, Any]) -> dict[str, Any]:
    spec = pod["spec"]
    return {
        "nodeSelector": spec.get("nodeSelector", {}),
        "tolerations": [item["key"] for item in spec.get("tolerations", [])],
        "affinity": list(spec.get("affinity", {})),
        "priorityClassName": spec.get("priorityClassName"),
        "annotations": {k for k in pod["metadata"].get("annotations", {}) if k in ("own", "all")},
        "env": {name for name in environment(containers(pod)[0]) if name in ("OWN", "ALL")},
    }


@pytest.mark.parametrize("part", PARTS)
def test_what_one_part_is_told_reaches_its_pods_and_no_others(part: str) -> None:
    found = by_kind(everything(PARTS[part](PLACES)))
    for kind, pod in found.items():
        told = shown(pod)
        if kind == part:
            assert told["nodeSelector"] == {"own": "yes"}
            assert (told["tolerations"], told["affinity"]) == (["own"], ["nodeAffinity"])
            assert (told["priorityClassName"], told["annotations"]) == ("own", {"own"})
            assert told["env"] == {"OWN"}
        else:
            assert told["nodeSelector"] == {} and told["tolerations"] == [] and told["env"] == set(), kind


def test_what_all_are_told_reaches_every_pod_and_every_object() -> None:
    rendered = everything({"common": COMMON})
    for kind, pod in by_kind(rendered).items():
        told = shown(pod)
        assert told["nodeSelector"] == {"all": "yes"}, kind
        assert (told["tolerations"], told["affinity"]) == (["all"], ["podAffinity"]), kind
        assert (told["priorityClassName"], told["annotations"]) == ("all", {"all"}), kind
        assert told["env"] == {"ALL"}, kind
        assert pod["spec"]["imagePullSecrets"] == [{"name": "pull"}], kind
        assert pod["metadata"]["labels"]["team"] == "all", kind
    for document in rendered.documents:
        assert document["metadata"]["labels"]["team"] == "all", document["kind"]


def test_a_part_adds_to_what_all_are_told_and_wins_where_both_cannot_be() -> None:
    rendered = everything({"common": COMMON}, *(make(PLACES) for make in PARTS.values()))
    for kind, pod in by_kind(rendered).items():
        told = shown(pod)
        assert told["nodeSelector"] == {"all": "yes", "own": "yes"}, kind
        assert (told["tolerations"], told["affinity"]) == (["all", "own"], ["nodeAffinity"]), kind
        assert (told["priorityClassName"], told["annotations"]) == ("own", {"all", "own"}), kind
        assert told["env"] == {"ALL", "OWN"}, kind


def test_a_label_of_the_users_cannot_break_a_selector() -> None:
    stolen = {"app.kubernetes.io/name": "mine", "app.kubernetes.io/component": "mine", "ok": "yes"}
    rendered = everything({"common": {"labels": stolen}, "service": {"podLabels": stolen}})
    deployment = rendered.one("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["ok"] == "yes"
    for name, value in deployment["spec"]["selector"]["matchLabels"].items():
        assert labels[name] == value

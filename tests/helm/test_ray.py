"""The Ray cluster that the chart asks KubeRay for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helm.rendering import containers, environment, render, with_values

pytestmark = pytest.mark.helm

GPU = {"min": 0, "max": 4, "cpu": 8, "memory": "32Gi", "gpu": 2, "shm": "4Gi"}


def cluster(values: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = render(values).one("RayCluster")["spec"]
    return spec


def test_the_head_has_no_work_and_no_gpus() -> None:
    head = cluster({})["headGroupSpec"]
    assert (head["rayStartParams"]["num-cpus"], head["rayStartParams"]["num-gpus"]) == ("0", "0")
    assert "nvidia.com/gpu" not in json.dumps(head)


def test_a_group_has_what_it_was_given() -> None:
    values = {
        "ray": {"workerGroups": {"gpu": {**GPU, "customResources": {"nvme": 1}, "labels": {"zone": "a"}}}}
    }
    groups = {group["groupName"]: group for group in cluster(values)["workerGroupSpecs"]}
    assert set(groups) == {"cpu", "gpu"}
    gpu = groups["gpu"]
    assert (gpu["minReplicas"], gpu["maxReplicas"], gpu["replicas"]) == (0, 4, 0)
    assert gpu["labels"] == {"zone": "a"}
    params = gpu["rayStartParams"]
    assert (params["num-cpus"], params["num-gpus"], params["memory"]) == ("8", "2", str(32 * 2**30))
    assert int(params["object-store-memory"]) < 4 * 2**30, "it is to fit into /dev/shm"
    assert json.loads(json.loads(params["resources"])) == {"nvme": 1}, "it passes a shell on its way"
    [container] = containers(gpu["template"])
    for bound in ("requests", "limits"):
        amounts = container["resources"][bound]
        assert (str(amounts["cpu"]), amounts["memory"], amounts["nvidia.com/gpu"]) == ("8", "32Gi", 2)
    [shm] = [volume for volume in gpu["template"]["spec"]["volumes"] if volume["name"] == "shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert "/dev/shm" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_a_group_that_is_null_and_a_map_that_is_empty_leave_nothing_behind() -> None:
    assert cluster({"ray": {"workerGroups": {"cpu": None}}})["workerGroupSpecs"] == []
    only = cluster({"ray": {"workerGroups": {"cpu": None, "gpu": GPU}}})["workerGroupSpecs"]
    assert [group["groupName"] for group in only] == ["gpu"]
    assert len(cluster({"ray": {"workerGroups": {}}})["workerGroupSpecs"]) == 1, (
        "Helm merges: {} changes nothing"
    )
    assert cluster({"ray": {"workerGroups": None}})["workerGroupSpecs"] == []


def test_a_dead_actors_children_die_too() -> None:
    spec = cluster({})
    for pod in (spec["headGroupSpec"]["template"], spec["workerGroupSpecs"][0]["template"]):
        told = environment(containers(pod)[0])
        assert told["RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"] == "true"
        assert told["RAY_process_group_cleanup_enabled"] == "false", "with both on, the other does nothing"


def test_workers_hear_of_their_pods_end_and_know_how_long_they_have() -> None:
    values = {"ray": {"workerGroups": {"cpu": {"terminationGracePeriodSeconds": 110}}}}
    pod = cluster(values)["workerGroupSpecs"][0]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 110
    [container] = containers(pod)
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert command == ["python", "-m", "elastrain.trainers.pod_stop", "105"]
    assert environment(container)["ELASTRAIN_GRACE_S"] == "105"
    from elastrain.trainers import pod_stop

    assert pod_stop.__name__ == command[2]


def test_pods_that_the_autoscaler_owns_are_never_restarted_in_place() -> None:
    """KubeRay refuses a restart policy with autoscaler v2."""
    spec = cluster({})
    assert "restartPolicy" not in spec["headGroupSpec"]["template"]["spec"]
    assert "restartPolicy" not in spec["workerGroupSpecs"][0]["template"]["spec"]


def test_a_new_head_finds_what_the_old_one_knew() -> None:
    redis = {"backend": "redis", "redis": {"address": "redis:6379", "existingSecret": "redis"}}
    options = cluster({"ray": {"faultTolerance": redis}})["gcsFaultToleranceOptions"]
    assert options["redisAddress"] == "redis:6379"
    assert options["redisPassword"]["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "redis-password"}
    assert options["externalStorageNamespace"] == "space-rel-elastrain-ray", (
        "two clusters may share one Redis"
    )
    volume = cluster({"ray": {"faultTolerance": {"backend": "rocksdb", "volume": {"size": "2Gi"}}}})
    assert volume["gcsFaultToleranceOptions"] == {"backend": "rocksdb", "storage": {"size": "2Gi"}}
    assert "gcsFaultToleranceOptions" not in cluster({})


def test_what_the_chart_does_not_know_can_be_said_raw_and_wins() -> None:
    values = {
        "ray": {
            "override": {"upgradeStrategy": {"type": "Recreate"}, "rayVersion": "2.61.0"},
            "head": {"override": {"hostNetwork": True}},
            "workerGroups": {"cpu": {"override": {"schedulerName": "volcano"}}},
        }
    }
    spec = cluster(values)
    assert (spec["upgradeStrategy"], spec["rayVersion"]) == ({"type": "Recreate"}, "2.61.0")
    assert spec["headGroupSpec"]["template"]["spec"]["hostNetwork"] is True
    assert spec["workerGroupSpecs"][0]["template"]["spec"]["schedulerName"] == "volcano"
    assert containers(spec["headGroupSpec"]["template"])[0]["name"] == "ray-head", "and the rest stays"


def test_a_group_may_have_an_image_of_its_own() -> None:
    values = {
        "ray": {
            "image": {"repository": "registry.example.com/elastrain-ray"},
            "workerGroups": {"gpu": {**GPU, "image": {"tag": "0.1.0-cuda"}}},
        }
    }
    images = [containers(group["template"])[0]["image"] for group in cluster(values)["workerGroupSpecs"]]
    assert images == [
        "registry.example.com/elastrain-ray:0.1.0",
        "registry.example.com/elastrain-ray:0.1.0-cuda",
    ]


def test_an_existing_cluster_is_spoken_to_and_nothing_of_ray_is_made() -> None:
    values = {
        "ray": {"create": False, "address": "http://ray.other:8265", "auth": {"existingSecret": "token"}},
        "storage": {"url": "s3://bucket/prefix"},
        "networkPolicy": {"enabled": True},
    }
    rendered = render(values)
    kinds = {document["kind"] for document in rendered.documents}
    assert not kinds & {"RayCluster", "Role", "RoleBinding"}
    [config] = rendered.all("ConfigMap")
    assert config["data"]["ELASTRAIN_RAY_ADDRESS"] == "http://ray.other:8265"
    [policy] = rendered.all("NetworkPolicy")
    assert {"ports": [{"port": 8265, "protocol": "TCP"}]} in policy["spec"]["egress"]


def test_service_and_ray_share_the_folder_where_there_is_no_bucket() -> None:
    rendered = render(with_values({"storage": {"volume": {"accessModes": ["ReadWriteMany"]}}}))
    claim = rendered.one("PersistentVolumeClaim", "-objects")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    spec = rendered.one("RayCluster")["spec"]
    for pod in (
        rendered.one("Deployment")["spec"]["template"],
        spec["headGroupSpec"]["template"],
        spec["workerGroupSpecs"][0]["template"],
    ):
        [volume] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "objects"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        paths = {mount["name"]: mount["mountPath"] for mount in containers(pod)[0]["volumeMounts"]}
        assert f"file://{paths['objects']}" == rendered.one("ConfigMap")["data"]["ELASTRAIN_STORAGE_URL"]
        # all of them write there as one group
        assert pod["spec"]["securityContext"]["fsGroup"] == 1000

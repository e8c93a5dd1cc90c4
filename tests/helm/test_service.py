"""The service on Kubernetes: its store, its doors, its addresses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helm.rendering import CHART, POSTGRES, ROOT, containers, environment, render, with_values

pytestmark = pytest.mark.helm


def service_pod(values: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = render(values).one("Deployment")["spec"]["template"]
    return pod


def mounts(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["mountPath"]: mount for mount in containers(pod)[0]["volumeMounts"]}


def test_sqlite_is_on_a_volume_that_one_pod_at_a_time_has() -> None:
    rendered = render({})
    assert rendered.one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    claim = rendered.one("PersistentVolumeClaim", "-home")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    [home] = [v for v in service_pod({})["spec"]["volumes"] if v["name"] == "home"]
    assert home["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert not rendered.all("Job") and not rendered.all("PodDisruptionBudget")


def test_with_postgresql_pods_replace_each_other_and_keep_nothing_of_their_own() -> None:
    rendered = render(with_values(POSTGRES, {"service": {"replicas": 3}}))
    deployment = rendered.one("Deployment")
    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = deployment["spec"]["template"]
    [home] = [v for v in pod["spec"]["volumes"] if v["name"] == "empty-home"]
    assert home["emptyDir"] == {}
    url = environment(containers(pod)[0])["ELASTRAIN_DATABASE_URL"]
    assert url == {"secretKeyRef": {"name": "db", "key": "database-url"}}
    assert rendered.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_all_replicas_have_the_same_admin_token() -> None:
    token = mounts(service_pod(POSTGRES))["/var/lib/elastrain/token"]
    assert (token["subPath"], token["readOnly"]) == ("token", True)
    [volume] = [v for v in service_pod(POSTGRES)["spec"]["volumes"] if v["name"] == token["name"]]
    assert volume["secret"]["items"] == [{"key": "admin-token", "path": "token"}]


def test_a_lost_ray_does_not_take_the_api_away() -> None:
    container = containers(service_pod({}))[0]
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz?db=1"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    started = container["startupProbe"]
    assert started["periodSeconds"] * started["failureThreshold"] == 300


def test_the_migration_job_needs_nothing_that_comes_after_it() -> None:
    """A hook before the install runs when ConfigMap and accounts of the release are not there yet."""
    rendered = render(with_values(POSTGRES, {"storage": {"url": "s3://bucket/prefix"}}))
    job = rendered.one("Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    pod = job["spec"]["template"]["spec"]
    assert "serviceAccountName" not in pod and "envFrom" not in pod["containers"][0]
    made = {document["metadata"]["name"] for document in rendered.documents}
    for volume in pod["volumes"]:
        assert set(volume) == {"name", "emptyDir"}
    assert environment(pod["containers"][0])["ELASTRAIN_DATABASE_URL"]["secretKeyRef"]["name"] not in made
    assert pod["containers"][0]["command"] == ["elastrain", "migrate"]


def test_the_command_of_the_migration_job_exists() -> None:
    from elastrain.api.cli import local

    assert "migrate" in {command.__name__ for command in local.COMMANDS}


def test_a_pod_may_answer_with_several_processes_on_postgresql() -> None:
    several = service_pod(with_values(POSTGRES, {"service": {"processes": 4}}))
    assert containers(several)[0]["args"][-2:] == ["--workers", "4"]
    assert "--workers" not in containers(service_pod(POSTGRES))[0]["args"]


def test_an_alert_leads_to_its_runbook_and_traces_go_where_they_are_wanted() -> None:
    values = {
        "metrics": {"prometheusRule": {"enabled": True, "runbookUrl": "https://docs.example.com/runbooks/"}},
        "tracing": {"endpoint": "http://collector:4318"},
    }
    rendered = render(values)
    rules = [rule for group in rendered.one("PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    alerts = [rule for rule in rules if "alert" in rule]
    assert alerts
    for alert in alerts:
        page = alert["annotations"]["runbook_url"].removeprefix("https://docs.example.com/runbooks/")
        assert (ROOT / "docs/runbooks" / page).is_file(), alert["alert"]
    told = environment(containers(rendered.one("Deployment")["spec"]["template"])[0])
    assert told["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"


def test_a_dashboard_comes_out_as_it_went_in() -> None:
    rendered = render({"metrics": {"dashboards": {"enabled": True, "annotations": {"folder": "ml"}}}})
    files = sorted((CHART / "dashboards").glob("*.json"))
    assert len(files) == 2
    for file in files:
        found = rendered.one("ConfigMap", f"-{file.stem}")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"folder": "ml"}
        [text] = found["data"].values()
        assert json.loads(text) == json.loads(file.read_text())


def test_no_replicas_are_named_where_an_autoscaler_counts_them() -> None:
    rendered = render(with_values(POSTGRES, {"autoscaling": {"enabled": True, "minReplicas": 3}}))
    assert "replicas" not in rendered.one("Deployment")["spec"]
    scaler = rendered.one("HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == rendered.one("Deployment")["metadata"]["name"]
    assert scaler["minReplicas"] == 3


def test_an_ingress_lets_streams_live_and_packages_pass() -> None:
    values = {"ingress": {"enabled": True, "hosts": ["a.org", "b.org"], "tlsSecret": "tls"}}
    ingress = render(values).one("Ingress")
    said = ingress["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    assert int(said[f"{prefix}proxy-read-timeout"]) >= 3600
    assert said[f"{prefix}proxy-buffering"] == "off"
    assert said[f"{prefix}proxy-body-size"] == "0"
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["a.org", "b.org"]
    assert ingress["spec"]["tls"] == [{"secretName": "tls", "hosts": ["a.org", "b.org"]}]


def test_a_route_lets_streams_live() -> None:
    values = {
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway"}]},
        "service": {"expose": {"port": 8080}},
    }
    rendered = render(values)
    [rule] = rendered.one("HTTPRoute")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    assert rule["backendRefs"] == [{"name": "rel-elastrain", "port": 8080}]
    assert rendered.one("Service")["spec"]["ports"][0]["port"] == 8080


def test_a_closed_network_still_asks_for_names_and_only_for_what_is_needed() -> None:
    values = with_values(
        POSTGRES,
        {
            "networkPolicy": {"enabled": True, "clients": [{"podSelector": {"matchLabels": {"app": "web"}}}]},
            "storage": {"url": "s3://b/p", "s3Endpoint": "http://minio.storage:9000"},
        },
    )
    rendered = render(values)
    for ending in ("elastrain", "-ray"):
        egress = rendered.one("NetworkPolicy", ending)["spec"]["egress"]
        ports = {(p["port"], p["protocol"]) for rule in egress if "to" not in rule for p in rule["ports"]}
        assert {(53, "UDP"), (53, "TCP"), (443, "TCP"), (5432, "TCP"), (9000, "TCP")} <= ports
    [rule] = rendered.one("NetworkPolicy", "elastrain")["spec"]["ingress"]
    assert rule["ports"] == [{"port": 8470, "protocol": "TCP"}]
    callers = [peer["podSelector"]["matchLabels"] for peer in rule["from"]]
    assert {"app": "web"} in callers and {"ray.io/cluster": "rel-elastrain-ray"} in callers
    # who is let in is who comes
    test = rendered.one("Pod", "-test")["metadata"]["labels"]
    assert any(set(labels.items()) <= set(test.items()) for labels in callers)


def test_rays_token_comes_from_the_secret_that_kuberay_makes_unless_there_is_one() -> None:
    def secret(values: dict[str, Any]) -> Any:
        return [v["secret"] for v in service_pod(values)["spec"]["volumes"] if v["name"] == "ray-token"]

    assert secret({})[0]["secretName"] == "rel-elastrain-ray"
    own = {"ray": {"auth": {"existingSecret": "mine"}}}
    assert secret(own)[0]["secretName"] == "mine"
    assert render(own).one("RayCluster")["spec"]["authOptions"] == {"mode": "token", "secretName": "mine"}
    off = {"ray": {"auth": {"enabled": False}}}
    assert secret(off) == []
    assert render(off).one("RayCluster")["spec"]["authOptions"] == {"mode": "disabled"}


def test_keys_of_the_bucket_are_a_file_so_that_they_may_be_rotated() -> None:
    values = {"storage": {"url": "s3://b/p", "existingSecret": "keys", "region": "eu-central-1"}}
    rendered = render(values)
    cluster = rendered.one("RayCluster")["spec"]
    for pod in (
        rendered.one("Deployment")["spec"]["template"],
        cluster["headGroupSpec"]["template"],
        cluster["workerGroupSpecs"][0]["template"],
    ):
        told = environment(containers(pod)[0])
        assert told["AWS_SHARED_CREDENTIALS_FILE"] == "/etc/elastrain/bucket/credentials"
        assert told["AWS_REGION"] == "eu-central-1"
        mount = mounts(pod)["/etc/elastrain/bucket"]
        assert mount["readOnly"] and "subPath" not in mount, "a subPath is never refreshed"
        assert "/var/lib/elastrain-objects" not in mounts(pod)


def test_metrics_are_read_with_a_token() -> None:
    monitor = {"metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}}
    rendered = render(with_values(POSTGRES, monitor))
    found = rendered.one("ServiceMonitor")
    assert found["metadata"]["labels"]["release"] == "prometheus"
    [endpoint] = found["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "admin", "key": "admin-token"}
    labels = rendered.one("Service")["metadata"]["labels"]
    assert set(found["spec"]["selector"]["matchLabels"].items()) <= set(labels.items())


def test_the_test_submits_the_digits_job_and_fails_as_it_does() -> None:
    assert render(POSTGRES).one("Pod")["spec"]["containers"][0]["command"][:2] == ["elastrain", "submit"]
    embedded = render({}).one("Pod")
    shell, _, command = embedded["spec"]["containers"][0]["command"]
    assert shell == "sh" and "exec elastrain submit" in command
    terms = embedded["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["topologyKey"] == "kubernetes.io/hostname", "one node at a time mounts the volume"
    bare = render({"database": {"volume": {"enabled": False}}})
    assert not bare.all("Pod"), "nobody else could know the token"
    assert "GOES WITH THE POD" in bare.notes


def test_the_notes_say_how_to_get_in() -> None:
    notes = render({}).notes
    assert "exec deployment/rel-elastrain -- cat /var/lib/elastrain/token" in notes
    notes = render(
        with_values(POSTGRES, {"ingress": {"enabled": True, "hosts": ["a.org"], "tlsSecret": "t"}})
    ).notes
    assert "get secret admin" in notes and 'index .data "admin-token"' in notes
    assert "https://a.org" in notes

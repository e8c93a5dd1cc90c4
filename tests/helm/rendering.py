"""Rendering the chart as Helm does, and finding one's way in what comes out."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/elastrain"
EXAMPLES = sorted((ROOT / "helm/examples").glob("*.yaml"))
INFO = 1  # severity of a message of the linter
Document = dict[str, Any]
# values of a production release, as short as can be
POSTGRES: Document = {"auth": {"existingSecret": "admin"}, "database": {"existingSecret": "db"}}


@dataclass(frozen=True)
class Rendered:
    documents: list[Document]
    notes: str

    def all(self, kind: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str, ending: str = "") -> Document:
        """The only document of this kind whose name ends so."""
        [found] = [d for d in self.all(kind) if d["metadata"]["name"].endswith(ending)]
        return found


def render(values: Document, release: str = "rel", namespace: str = "space", chart: Path = CHART) -> Rendered:
    """What `helm install` would send; the caller may change it. Raises what Helm says."""
    return copy.deepcopy(_rendered(json.dumps(values), release, namespace, chart))


def with_values(*layers: Document) -> Document:
    """Values laid over each other as Helm does with several `-f`."""
    merged: Document = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            both = isinstance(value, dict) and isinstance(below, dict)
            merged[key] = with_values(below, value) if both else copy.deepcopy(value)
    return merged


def pods(rendered: Rendered) -> Iterator[tuple[str, Document]]:
    """(whose, pod with metadata and spec) of every pod that comes of it."""
    for document in rendered.documents:
        kind, name = document["kind"], document["metadata"]["name"]
        if kind == "Pod":
            yield name, document
        elif kind in ("Deployment", "Job"):
            yield name, document["spec"]["template"]
        elif kind == "RayCluster":
            yield f"{name} head", document["spec"]["headGroupSpec"]["template"]
            for group in document["spec"]["workerGroupSpecs"]:
                yield f"{name} {group['groupName']}", group["template"]


def containers(pod: Document) -> list[Document]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def environment(container: Document) -> dict[str, Any]:
    """{name: value, or where it comes from}"""
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container.get("env", [])}


def settings(rendered: Rendered) -> dict[str, str]:
    """What the service's container has in its environment by the ConfigMap."""
    deployment = rendered.one("Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    [source] = container["envFrom"]
    [found] = [
        d for d in rendered.all("ConfigMap") if d["metadata"]["name"] == source["configMapRef"]["name"]
    ]
    data: dict[str, str] = found["data"]
    return data


def script() -> Any:
    """helm/readme.py"""
    spec = importlib.util.spec_from_file_location("helm_readme", ROOT / "helm/readme.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lint(values: Document | None = None) -> list[str]:
    """What `helm lint --strict` has to say that is more than advice."""
    found = helm_python.lint(CHART, values, strict=True)
    assert found["total_charts_linted"] == 1
    said = [str(message["error"]) for message in found["messages"] if message["severity"] > INFO]
    return [*said, *map(str, found["errors"])]


@lru_cache(maxsize=256)
def _rendered(values: str, release: str, namespace: str, chart: Path) -> Rendered:
    loaded = _loaded(chart)
    loaded.validate_schema(json.loads(values))
    files = loaded.render(json.loads(values), name=release, namespace=namespace)
    notes = "".join(text for path, text in files.items() if path.endswith("NOTES.txt"))
    documents = [
        document
        for path, text in files.items()
        if not path.endswith(("NOTES.txt", ".tpl"))
        for document in yaml.load_all(text, yaml.CSafeLoader)
        if document
    ]
    return Rendered(documents, notes)


@lru_cache
def _loaded(chart: Path) -> Any:
    return helm_python.Chart.load(chart)

"""Kinds that are no part of Kubernetes, as their projects define them (CustomResourceDefinition)."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from pathlib import Path

import yaml

from helm.rendering import ROOT, Document

HERE = Path(__file__).with_name("definitions")
KUBERAY = ROOT.parent / "shared/kuberay/rayclusters.yaml.gz"
MISSING = (
    "KubeRay's definitions are not here: put rayclusters.yaml.gz of a KubeRay release (its CRD) into "
    f"{KUBERAY.parent}"
)


@lru_cache
def known() -> dict[tuple[str, str], Document]:
    """{(group, kind): its definition}; KubeRay's only if it is here."""
    found = [json.loads(path.read_text()) for path in sorted(HERE.glob("*.json"))]
    if KUBERAY.exists():
        found.append(yaml.load(gzip.decompress(KUBERAY.read_bytes()), yaml.CSafeLoader))
    return {(crd["spec"]["group"], crd["spec"]["names"]["kind"]): crd for crd in found}


def schema_of(version: str, kind: str) -> Document | None:
    """What a definition says of a kind, as the API server reads it; version: such as ray.io/v1."""
    group, _, version = version.rpartition("/")
    definition = known().get((group, kind))
    if definition is None:
        return None
    [found] = [v for v in definition["spec"]["versions"] if v["name"] == version]
    schema: Document = found["schema"]["openAPIV3Schema"]
    return schema

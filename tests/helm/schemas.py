"""Manifests against the schemas of what will read them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jsonschema
import kubernetes_validate

from helm.definitions import schema_of
from helm.rendering import Document

KUBERNETES = "1.32"


def check_kubernetes(document: Document) -> bool:
    """False if it is no kind of Kubernetes itself. Raises ValidationError."""
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        return False
    return True


def check_defined(document: Document) -> bool:
    """False if nobody here has a definition of its kind. Raises jsonschema's ValidationError."""
    validator = _validator(document["apiVersion"], document["kind"])
    if validator is None:
        return False
    validator.validate(document)
    return True


@lru_cache
def _validator(version: str, kind: str) -> Any:
    found = schema_of(version, kind)
    if found is None:
        return None
    schema = _closed(found)
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

"""What the service says about itself and its cluster, and how it says no."""

from typing import Any

from pydantic import BaseModel, Field

from elastrain.api.schemas.base import AT, JOB_ID, example


class PointedError(BaseModel):
    pointer: str = Field(description="JSON pointer to the field at fault.")
    detail: str = Field(description="What is wrong with it and what to do.")


class Problem(BaseModel):
    """RFC 9457 problem details; every error of this API has this shape."""

    model_config = example(
        {
            "type": "urn:elastrain:problem:invalid",
            "title": "Invalid request",
            "status": 422,
            "code": "invalid",
            "detail": "1 field is wrong.",
            "errors": [{"pointer": "/batch/microbatch", "detail": "48 does not divide the batch size 256"}],
            "hint": "Take a divisor of 256, such as 32 or 64.",
        }
    )
    type: str
    title: str
    status: int
    code: str = Field(description="Stable name of the error, for programs.")
    detail: str
    errors: list[PointedError] = []
    hint: str | None = None


class QueueItem(BaseModel):
    model_config = example(
        {
            "id": JOB_ID,
            "name": "digits",
            "project": "default",
            "priority": 0,
            "position": 1,
            "reason": "waiting_for_workers",
            "blocked_by": "2 CPUs are asked for, 1 is free",
            "short_of": {"workers": 1},
        }
    )
    id: str
    name: str
    project: str
    priority: int
    position: int
    reason: str | None
    blocked_by: str | None
    short_of: dict[str, Any] | None


class QueuePage(BaseModel):
    items: list[QueueItem]
    next_cursor: str | None = None


class Node(BaseModel):
    id: str
    alive: bool
    resources: dict[str, float]
    used: dict[str, float]
    labels: dict[str, str] = Field({}, description="As Ray has them; a job may ask for some.")


class Found(BaseModel):
    python: str | None
    elastrain: str | None
    ray: str | None
    torch: str | None
    storage: str | None = Field(description="null: it takes writes from there; else why not.")
    service: str | None = Field(description="null: drivers reach it; else why not.")


CHECK: dict[str, Any] = {
    "at": AT,
    "found": {
        "python": "3.11.2",
        "elastrain": "0.1.0",
        "ray": "2.60.0",
        "torch": "2.13.0",
        "storage": None,
        "service": None,
    },
    "differences": [],
    "detail": None,
}


class ClusterChecked(BaseModel):
    """What a tiny Ray Job saw on the cluster; made once, by each version of the service."""

    model_config = example(CHECK)
    at: str | None
    found: Found | None
    differences: list[str] = Field(description="In what it is not as it should be, in a sentence each.")
    detail: str | None = Field(description="Why nothing was found.")


class Cluster(BaseModel):
    model_config = example(
        {
            "nodes": [{"id": "4e1f", "alive": True, "resources": {"CPU": 2.0}, "used": {"CPU": 1.0}}],
            "capacity_max": {"CPU": 2.0},
            "reachable": True,
            "detail": None,
            "at": AT,
            "check": CHECK,
        }
    )
    nodes: list[Node]
    capacity_max: Any = Field(description="The most the cluster can grow to.")
    reachable: bool = Field(description="Whether Ray answered when it was last asked.")
    detail: str | None
    at: str | None = Field(description="When it was last asked.")
    check: ClusterChecked | None = Field(description="null: it was not made yet.")


class Version(BaseModel):
    model_config = example({"server": "0.1.0", "api": "1", "min_client": "0.1.0"})
    server: str
    api: str
    min_client: str


class Me(BaseModel):
    """Whose token this is and what it may do."""

    model_config = example({"id": "t-1", "name": "local admin", "project": None, "role": "admin"})
    id: str
    name: str
    project: str | None
    role: str


class Check(BaseModel):
    ok: bool
    detail: str | None = None
    age_s: float | None = None


class Ready(BaseModel):
    model_config = example(
        {"ready": True, "checks": {"database": {"ok": True, "detail": None, "age_s": 0.4}}}
    )
    ready: bool
    checks: dict[str, Check]


class Healthy(BaseModel):
    model_config = example({"ok": True})
    ok: bool


class Package(BaseModel):
    model_config = example({"sha256": "9f86d081884c7d65", "bytes": 12345})
    sha256: str
    bytes: int

"""A job as the API answers with it, and what may be asked of it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from elastrain.api.schemas.base import AT, JOB_ID, FailedBy, Number, example
from elastrain.service.jobs import Reason, Status


class Transition(BaseModel):
    status: Status
    reason: Reason | None
    at: str
    actor: str | None


class JobWorkers(BaseModel):
    min: int
    max: int
    target: int | None = Field(description="How many workers the scheduler wants now.")
    active: int = Field(description="How many train at this moment.")


class Progress(BaseModel):
    step: int
    total_steps: int | None
    epoch: float | None
    eta_s: Number | None
    samples_per_s: Number | None


class QueuePlace(BaseModel):
    position: int
    blocked_by: str | None = Field(description="What it waits for, for people.")
    short_of: dict[str, Any] | None = Field(description="What is missing, in numbers.")


class Counters(BaseModel):
    attempts: int
    retries_left: int
    workers_replaced: int
    steps_skipped: int


class CheckpointRequests(BaseModel):
    asked: int = Field(description="The number of the newest request.")
    done: int = Field(description="All requests up to this number are saved.")


class SearchedNode(BaseModel):
    node: str
    pids: list[int] = Field(description="What had been left there, and was ended.")
    seconds: Number


class Receipt(BaseModel):
    """What is known of the end of an attempt's processes."""

    attempt: int
    proven: bool = Field(description="Every node that it used was searched, and nothing of it is left.")
    reason: str | None = Field(description="Why it could not be proven, such as cluster_lost.")
    message: str
    nodes: list[SearchedNode]
    unsearched: list[str] = Field(description="Nodes that it used and that are gone from the cluster.")
    seconds: Number


JOB: dict[str, Any] = {
    "id": JOB_ID,
    "name": "digits",
    "project": "default",
    "priority": 0,
    "labels": {},
    "status": "running",
    "reason": "training",
    "message": None,
    "failed_by": None,
    "since": AT,
    "desired": "run",
    "attempt": 1,
    "spec": {"name": "digits", "task": "elastrain.trainers.tasks.digits:Digits"},
    "workers": {"min": 1, "max": 4, "target": 2, "active": 2},
    "progress": {"step": 12, "total_steps": 30, "epoch": 2, "eta_s": 9.5, "samples_per_s": 486.2},
    "queue": None,
    "metrics": {"latest": {"loss": 0.41, "lr": 0.001}},
    "scaling": [[1, 251.3], [2, 486.2]],
    "warnings": [],
    "advice": [],
    "account": {"queued_s": 2.1, "starting_s": 4.8},
    "counters": {"attempts": 1, "retries_left": 3, "workers_replaced": 0, "steps_skipped": 0},
    "links": {"ray_dashboard": None, "ray_actors": None, "ray_metrics": None, "ray_train": None},
    "receipt": None,
    "created_by": "admin",
    "created_at": AT,
    "started_at": AT,
    "finished_at": None,
    "transitions": [{"status": "queued", "reason": "submitted", "at": AT, "actor": "admin"}],
    "checkpoint_requests": {"asked": 0, "done": 0},
    "pinned": False,
    "allowed_actions": ["cancel", "pause", "checkpoint", "scale", "clone"],
}


class Job(BaseModel):
    """A submitted job: what is wanted, what is observed, and how far it is."""

    model_config = example(JOB)
    id: str
    name: str
    project: str
    priority: int
    labels: dict[str, str]
    status: Status
    reason: Reason | None = Field(description="Why it is in this status.")
    message: str | None = Field(description="For people; a failed job's first traceback.")
    failed_by: FailedBy | None = None
    since: str
    desired: str
    attempt: int
    spec: dict[str, Any]
    workers: JobWorkers
    progress: Progress
    queue: QueuePlace | None
    metrics: dict[str, Any]
    scaling: list[tuple[int, float]] = Field(
        description="Measured speed: pairs of workers and samples per second; spare workers go by it."
    )
    warnings: list[Any]
    advice: list[str] = Field(description="What its own measurements advise, for people.")
    account: dict[str, float] = Field(description="Seconds in each status, up to `since`.")
    counters: Counters
    links: dict[str, str | None]
    receipt: Receipt | None = Field(description="Of the newest attempt, once it is over.")
    created_by: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    transitions: list[Transition]
    checkpoint_requests: CheckpointRequests
    pinned: bool = Field(description="Never removed for its age.")
    allowed_actions: list[str]


class JobPage(BaseModel):
    model_config = example({"items": [JOB], "next_cursor": None})
    items: list[Job]
    next_cursor: str | None


class DryRun(BaseModel):
    """What a submit of this spec would do; nothing was stored."""

    model_config = example(
        {"spec": JOB["spec"], "schedulable": True, "would_get": 4, "blocked_by": None, "warnings": []}
    )
    spec: dict[str, Any]
    schedulable: bool
    would_get: int
    blocked_by: str | None
    warnings: list[Any]


class CancelledItem(BaseModel):
    id: str
    name: str
    project: str
    status: Status = Field(description="After the request.")
    done: bool = Field(description="Whether it is or will be cancelled.")
    detail: str | None = Field(description="Why not.")


class Cancelled(BaseModel):
    """What became of each job that the filter found."""

    model_config = example(
        {
            "dry_run": False,
            "items": [
                {
                    "id": JOB_ID,
                    "name": "digits",
                    "project": "default",
                    "status": "cancelling",
                    "done": True,
                    "detail": None,
                }
            ],
        }
    )
    dry_run: bool
    items: list[CancelledItem]


class WorkerRange(BaseModel):
    model_config = ConfigDict(extra="forbid")
    min: int | None = Field(None, description="Never fewer.")
    max: int | None = Field(None, description="Never more.")


class JobPatch(BaseModel):
    """What may change on a live job; fields left out stay as they are."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"workers": {"min": 2, "max": 6}}]}
    )
    workers: WorkerRange | None = Field(None, description="The new range of workers; checked like a submit.")
    priority: int | None = Field(None, description="Higher first.")
    labels: dict[str, str] | None = Field(None, description="Replaces the job's labels.")
    pinned: bool | None = Field(None, description="Whether it stays however old it gets.")

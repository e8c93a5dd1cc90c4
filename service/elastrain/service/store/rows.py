"""Rows as the rest of the service sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from elastrain.service.jobs import Desired, Status


@dataclass(frozen=True)
class JobRow:
    """A job as the store holds it; see schema.py for what the columns mean."""

    id: str
    name: str
    project: str
    priority: int
    spec: dict[str, Any]
    created_by: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    status: Status
    reason: str
    message: str | None
    failed_by: str | None
    since: float
    queued_at: float
    short_of: int
    desired: Desired
    desired_version: int
    desired_at: float
    workers_min: int
    workers_max: int
    workers_target: int
    workers_held: int
    grown_at: float
    shrunk_at: float
    curve: Any
    checkpoint_no: int
    checkpoint_done: int
    attempt: int
    attempts_made: int
    next_attempt_at: float
    retries_used: int
    retries_mark: int
    active_s: float
    position: int
    step: int
    total_steps: int | None
    epoch: float | None
    eta_s: float | None
    samples_per_s: float | None
    workers_active: int
    workers_replaced: int
    steps_skipped: int
    warnings: list[str]
    era_attempt: int
    era_epoch_no: int
    pinned: bool
    deleted_at: float | None

    def active_until(self, at: float) -> float:
        """Seconds in starting and running, over all attempts since it was last retried."""
        counts = self.status in (Status.STARTING, Status.RUNNING)
        return self.active_s + (max(0.0, at - self.since) if counts else 0.0)

    @property
    def gpus_each(self) -> float:
        """Per worker."""
        return float(self.spec["resources"]["gpu"])


class QueuedRow(NamedTuple):
    """What is shown of a job in the queue: of a long one the specs are not read. gpus_each: per worker."""

    id: str
    name: str
    project: str
    priority: int
    reason: str
    message: str | None
    short_of: int
    gpus_each: float


class WaitingRow(NamedTuple):
    """What the scheduler asks about a queued job in each round."""

    id: str
    priority: int
    queued_at: float
    workers_min: int
    workers_max: int
    curve: dict[str, Any] | None
    reason: str
    message: str | None
    short_of: int
    desired_version: int
    next_attempt_at: float


AttemptState = Literal["submitting", "submitted", "claimed", "sweeping", "ended"]


@dataclass(frozen=True)
class AttemptRow:
    """One attempt and its line to the driver."""

    job: str
    number: int
    submission_id: str
    state: AttemptState
    created_at: float
    submitted_at: float | None
    claimed_at: float | None
    ended_at: float | None
    code: str | None
    code_digest: str
    nonce_digest: str | None
    token_secret: str
    token_digest: str | None
    acked_seq: int
    stop_asked_at: float | None
    outcome: str | None
    outcome_at: float | None
    outcome_step: int | None
    failed_by: str | None
    message: str | None
    cluster: str | None
    receipt: dict[str, Any] | None
    sweep_no: int
    sweep_at: float | None
    forced_by: str | None

    @property
    def has_driver(self) -> bool:
        """Whether its driver may still be there, or come."""
        return self.state in ("submitting", "submitted", "claimed")


@dataclass(frozen=True)
class ProjectRow:
    name: str
    weight: float
    quota_workers: int | None
    quota_gpus: int | None
    created_at: float | None


@dataclass(frozen=True)
class TokenRow:
    id: str
    name: str
    role: Literal["admin", "member", "viewer"]
    project: str | None
    expires_at: float | None
    last_used_at: float | None


@dataclass(frozen=True)
class TransitionRow:
    status: str
    reason: str
    at: float
    actor: str


@dataclass(frozen=True)
class SegmentRow:
    """A piece of a worker's output: `bytes` bytes at `offset` of that worker's file, in object storage."""

    position: int
    attempt: int
    worker: str
    offset: int
    bytes: int
    at: float

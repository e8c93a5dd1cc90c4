"""A job at the moment of its submit. Everything about it is known, so nothing of it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from elastrain.service.jobs import Desired, Reason, Status
from elastrain.service.store import jobs
from elastrain.service.store.engine import Tx
from elastrain.service.store.rows import JobRow, TransitionRow
from elastrain.service.store.schema import events, transitions
from elastrain.service.store.schema import jobs as table

# what is written of every job at first
_NEW: dict[str, Any] = {
    "status": Status.QUEUED.value,
    "reason": Reason.SUBMITTED.value,
    "desired": Desired.RUN.value,
    "desired_version": 1,
    "workers_target": 0,
    "checkpoint_no": 0,
    "checkpoint_done": 0,
    "attempt": 0,
    "attempts_made": 0,
    "next_attempt_at": 0.0,
    "short_of": 0,
    "retries_used": 0,
    "retries_mark": 0,
    "active_s": 0.0,
    "position": 1,  # of its first event
    "step": 0,
    "workers_active": 0,
    "workers_replaced": 0,
    "steps_skipped": 0,
    "era_attempt": 0,
    "era_epoch_no": 0,
    "pinned": False,
}
# and what its other columns are then
_ABSENT: dict[str, Any] = dict.fromkeys(
    ("started_at", "finished_at", "message", "failed_by", "curve", "total_steps", "epoch", "eta_s")
)
_ABSENT |= {"samples_per_s": None, "deleted_at": None, "workers_held": 0, "grown_at": 0.0, "shrunk_at": 0.0}
_INSERT, _NOTE, _EVENT = insert(table), insert(transitions), insert(events)


class IdTaken(Exception):
    """There is a job of that id: roll back, and try another one."""


def insert_new(
    tx: Tx, id: str, *, spec: dict[str, Any], actor: str, warnings: list[str], at: float
) -> JobRow:
    """A queued job, its first transition and event. Raises IdTaken."""
    new = New.of(id, spec, actor, warnings, at)
    try:
        tx.execute(_INSERT, new.job)
    except IntegrityError as error:
        raise IdTaken(id) from error
    jobs.add_labels(tx, id, spec["labels"])
    tx.execute(_NOTE, new.transition)
    tx.execute(_EVENT, new.event)
    row = {**_ABSENT, **new.job, "status": Status.QUEUED, "desired": Desired.RUN}
    return JobRow(**row)


@dataclass(frozen=True)
class New:
    """What a submit writes, beside the labels."""

    job: dict[str, Any]
    transition: dict[str, Any]
    event: dict[str, Any]

    @classmethod
    def of(cls, id: str, spec: dict[str, Any], actor: str, warnings: list[str], at: float) -> New:
        job = {
            **_NEW,
            "id": id,
            "name": spec["name"],
            "project": spec["project"],
            "priority": spec["priority"],
            "spec": spec,
            "created_by": actor,
            "workers_min": spec["workers"]["min"],
            "workers_max": spec["workers"]["max"],
            "warnings": warnings,
        }
        job |= dict.fromkeys(("created_at", "since", "queued_at", "desired_at"), at)
        said = {"status": job["status"], "reason": job["reason"], "actor": actor}
        event = {"job": id, "position": job["position"], "at": at, "type": "job.queued", "data": said}
        event["message"] = "The job was submitted"
        return cls(job, {"job": id, "number": 1, "at": at, **said}, event)


def history(row: JobRow) -> list[TransitionRow]:
    """The transitions of a job that was just inserted."""
    return [TransitionRow(row.status.value, row.reason, row.since, row.created_by)]

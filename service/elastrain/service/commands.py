"""What a user, or `up`, asks of a job. Only wishes are written here; the reconciler acts on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastrain.service.auth import Actor
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.errors import Conflict, Invalid
from elastrain.service.finding import lock
from elastrain.service.jobs import ACTIVE, ENDED, Desired, Move, Signal, Status, advance, allowed_actions
from elastrain.service.store import Store, Tx, feed, jobs
from elastrain.service.store.rows import JobRow
from elastrain.service.submission import invalid_spec
from elastrain.service.views import JobViews
from elastrain.trainers.spec import SpecError, amended, parse_spec

Json = dict[str, Any]
PATCHABLE = {"workers": ("min", "max"), "priority": (), "labels": ()}


class Commands:
    def __init__(self, store: Store, job_views: JobViews, clock: Clock, changes: Changes) -> None:
        self._store = store
        self._views = job_views
        self._clock = clock
        self._changes = changes

    def patch(self, job_id: str, body: Mapping[str, Any], actor: Actor) -> Json:
        """New bounds apply at once; whether more workers can be had is for the next scheduler round."""
        _only_patchable(body)
        with self._store.write() as tx:
            row = lock(tx, job_id, actor, "change jobs")
            if row.status in ENDED or row.status is Status.CANCELLING:
                raise _not_now(row, "changed")
            try:
                spec = amended(parse_spec(row.spec), body).model_dump(mode="json")
            except SpecError as error:
                raise invalid_spec(error) from None
            if spec != row.spec:
                _write_spec(tx, row, spec, body, actor, self._clock.now())
            job = self._views.one(tx, jobs.get(tx, row.id))
        self._changes.tell(row.id, decide=True)
        return job

    def cancel(self, job_id: str, actor: Actor) -> Json:
        with self._store.write() as tx:
            row = lock(tx, job_id, actor, "cancel jobs")
            if row.status not in (Status.CANCELLING, Status.CANCELLED):
                move = advance(row.status, Signal.ASK_CANCEL)
                if move is None:
                    raise _not_now(row, "cancelled")
                row = ask(
                    tx,
                    row,
                    move,
                    Desired.CANCEL,
                    f"{actor.name} asked to cancel",
                    actor.name,
                    self._clock.now(),
                )
            job = self._views.one(tx, row)
        self._changes.tell(row.id, decide=True)
        return job

    def preempt_all(self, message: str) -> list[str]:
        asked = []
        with self._store.write() as tx:
            for id in [row.id for row in jobs.in_status(tx, [Status.STARTING, Status.RUNNING])]:
                row = jobs.lock(tx, id)
                if move := advance(row.status, Signal.ASK_PREEMPT):
                    ask(tx, row, move, Desired.PREEMPT, message, "service", self._clock.now())
                    asked.append(id)
        for id in asked:
            self._changes.tell(id, decide=True)
        return asked


def ask(tx: Tx, row: JobRow, move: Move, desired: Desired, message: str, actor: str, at: float) -> JobRow:
    """Write down what is wanted now, so that the driver hears of it."""
    wanted = {"desired": desired, "desired_version": row.desired_version + 1, "desired_at": at}
    return jobs.move(tx, row, move.status, move.reason, message, actor, at, **wanted)


def _only_patchable(body: Mapping[str, Any]) -> None:
    allowed = "workers {min, max}, priority, labels"
    for field, value in body.items():
        if field not in PATCHABLE:
            raise Invalid(
                f"{field!r} cannot be changed on a live job; what can is {allowed}",
                errors=[{"pointer": f"/{field}", "detail": "cannot be changed on a live job"}],
            )
        inner = PATCHABLE[field]
        for name in value if inner and isinstance(value, Mapping) else ():
            if name not in inner:
                detail = "cannot be changed on a live job"
                pointer = f"/{field}/{name}"
                raise Invalid(
                    f"{pointer} {detail}; what can is {allowed}",
                    errors=[{"pointer": pointer, "detail": detail}],
                )
    if not body:
        raise Invalid(f"The body names nothing to change; what can be changed is {allowed}")


def _write_spec(tx: Tx, row: JobRow, spec: Json, body: Mapping[str, Any], actor: Actor, at: float) -> None:
    workers = spec["workers"]
    values: dict[str, Any] = {"workers_min": workers["min"], "workers_max": workers["max"]}
    if row.status in ACTIVE:
        values["workers_target"] = min(max(row.workers_target, workers["min"]), workers["max"])
    values |= {"spec": spec, "priority": spec["priority"], "desired_version": row.desired_version + 1}
    jobs.change(tx, row.id, **values)
    if spec["labels"] != row.spec["labels"]:
        jobs.set_labels(tx, row.id, spec["labels"])
    data = {"changes": dict(body), "actor": actor.name}
    feed.add_event(tx, row.id, "job.updated", f"{actor.name} changed {', '.join(body)}", data, at)


def _not_now(row: JobRow, verb: str) -> Conflict:
    actions = allowed_actions(row.status)
    hint = f"Possible now: {', '.join(actions)}." if actions else "Nothing can be asked of it any more."
    detail = f"Job {row.id} is {row.status} and cannot be {verb}"
    return Conflict(detail, hint=hint, extra={"allowed_actions": actions, "status": row.status.value})

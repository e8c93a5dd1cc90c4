"""Changing a live job: its range of workers, priority and labels; and how long it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastrain.service.auth import Actor
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.commands import not_now
from elastrain.service.errors import Invalid
from elastrain.service.finding import lock
from elastrain.service.jobs import ACTIVE, ENDED, Status
from elastrain.service.store import Store, Tx, feed, jobs
from elastrain.service.store.rows import JobRow
from elastrain.service.submission import invalid_spec
from elastrain.service.views import JobViews
from elastrain.trainers.spec import SpecError, amended, parse_spec

Json = dict[str, Any]
PATCHABLE = {"workers": ("min", "max"), "priority": (), "labels": (), "pinned": ()}
# what is not about its training, and so may change when that is over
ALWAYS = ("labels", "pinned")


class Patching:
    def __init__(self, store: Store, job_views: JobViews, clock: Clock, changes: Changes) -> None:
        self._store = store
        self._views = job_views
        self._clock = clock
        self._changes = changes

    def patch(self, job_id: str, body: Mapping[str, Any], actor: Actor) -> Json:
        """New bounds apply at once; whether more workers can be had is for the next scheduler round."""
        _only_patchable(body)
        changes = {field: value for field, value in body.items() if field != "pinned"}
        with self._store.write() as tx:
            row = lock(tx, job_id, actor, "change jobs")
            over = row.status in ENDED or row.status is Status.CANCELLING
            if over and (what := [field for field in body if field not in ALWAYS]):
                raise not_now(row, f"given other {' or '.join(what)}")
            try:
                spec = amended(parse_spec(row.spec), changes).model_dump(mode="json")
            except SpecError as error:
                raise invalid_spec(error) from None
            pinned = body.get("pinned", row.pinned)
            if (spec, pinned) != (row.spec, row.pinned):
                jobs.change(tx, row.id, pinned=pinned)
                _write_spec(tx, row, spec, body, actor, self._clock.now())
            job = self._views.one(tx, jobs.get(tx, row.id))
        self._changes.tell(row.id, decide=True)
        return job


def _only_patchable(body: Mapping[str, Any]) -> None:
    allowed = "workers {min, max}, priority, labels, pinned"
    for field, value in body.items():
        if field not in PATCHABLE:
            raise _refused(f"/{field}", "cannot be changed on a live job", allowed)
        inner = PATCHABLE[field]
        for name in value if inner and isinstance(value, Mapping) else ():
            if name not in inner:
                raise _refused(f"/{field}/{name}", "cannot be changed on a live job", allowed)
    if not isinstance(body.get("pinned", False), bool):
        raise _refused("/pinned", f"must be true or false, got {body['pinned']!r}", allowed)
    if not body:
        raise Invalid(f"The body names nothing to change; what can be changed is {allowed}")


def _refused(pointer: str, detail: str, allowed: str) -> Invalid:
    errors = [{"pointer": pointer, "detail": detail}]
    return Invalid(f"{pointer} {detail}; what can be changed is {allowed}", errors=errors)  # type: ignore[arg-type]


def _write_spec(tx: Tx, row: JobRow, spec: Json, body: Mapping[str, Any], actor: Actor, at: float) -> None:
    workers = spec["workers"]
    values: dict[str, Any] = {"workers_min": workers["min"], "workers_max": workers["max"]}
    if row.status in ACTIVE:
        values["workers_target"] = min(row.workers_target, workers["max"])  # more is the scheduler's to give
    values |= {"spec": spec, "priority": spec["priority"], "desired_version": row.desired_version + 1}
    jobs.change(tx, row.id, **values)
    if spec["labels"] != row.spec["labels"]:
        jobs.set_labels(tx, row.id, spec["labels"])
    data = {"changes": dict(body), "actor": actor.name}
    feed.add_event(tx, row.id, "job.updated", f"{actor.name} changed {', '.join(body)}", data, at)

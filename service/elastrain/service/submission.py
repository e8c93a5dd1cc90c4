"""Submitting: the door where everything that can be known about a spec is checked, then one row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from elastrain.service import ids, scheduler
from elastrain.service.auth import Actor
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.errors import FieldError, Forbidden, Invalid
from elastrain.service.packages import Packages
from elastrain.service.store import Store, Tx, installation, jobs, uploads
from elastrain.service.store.rows import JobRow
from elastrain.service.views import JobViews
from elastrain.trainers.spec import JobSpec, SpecError, parse_spec

Json = dict[str, Any]
ROUTE = "POST /jobs"
KEY_MAX = 255


class Submission:
    def __init__(
        self, store: Store, packages: Packages, job_views: JobViews, clock: Clock, changes: Changes
    ) -> None:
        self._store = store
        self._packages = packages
        self._views = job_views
        self._clock = clock
        self._changes = changes

    def submit(self, data: Mapping[str, Any], actor: Actor, key: str | None) -> tuple[Json, bool]:
        """-> (job, created). Key, spec and job are one transaction: a repeated key finds the same job."""
        if key is not None and not 1 <= len(key) <= KEY_MAX:
            raise Invalid(f"The idempotency key has {len(key)} characters; give 1 to {KEY_MAX}")
        spec, digest = self._checked(data, actor), body_digest(data)
        try:
            return self._submit(spec, digest, actor, key)
        except uploads.KeyTaken:  # by the same call, a moment before: its job is there now
            return self._submit(spec, digest, actor, key)

    def _submit(self, spec: JobSpec, digest: str, actor: Actor, key: str | None) -> tuple[Json, bool]:
        now = self._clock.now()
        with self._store.write() as tx:
            before = uploads.find_key(tx, actor.token_id, ROUTE, key) if key else None
            if before is not None:
                if before[0] != digest:
                    raise Invalid(
                        f"The idempotency key {key!r} was used for another spec",
                        code="idempotency_key_reused",
                        hint="Take a new key for a new job.",
                    )
                return self._views.one(tx, jobs.get(tx, before[1])), False
            self._package_must_exist(spec, actor)
            row = self._insert(tx, spec, actor, now)
            if key:
                uploads.add_key(tx, actor.token_id, ROUTE, key, digest, row.id, now)
            job = self._views.one(tx, row)
        self._changes.tell(row.id, decide=True)
        return job, True

    def dry_run(self, data: Mapping[str, Any], actor: Actor) -> Json:
        spec = self._checked(data, actor)
        self._package_must_exist(spec, actor)
        dumped = spec.model_dump(mode="json")
        with self._store.read() as tx:
            seen = installation.read(tx, "cluster")
            alive = jobs.alive(tx)
        ask = scheduler.new_ask("(this job)", spec.name, dumped)
        answer = scheduler.plan_one(ask, alive, seen[1] if seen else None)
        granted = isinstance(answer, scheduler.Grant)
        return {
            "spec": dumped,
            "schedulable": granted,
            "would_get": answer.workers if isinstance(answer, scheduler.Grant) else 0,
            "blocked_by": answer.message if isinstance(answer, scheduler.Wait) else None,
            "warnings": [],
        }

    def _checked(self, data: Mapping[str, Any], actor: Actor) -> JobSpec:
        actor.must("member", "submit jobs")
        spec = parsed(data)
        if not actor.sees(spec.project):
            raise Forbidden(
                f"{actor.name!r} belongs to the project {actor.project!r}, the spec names {spec.project!r}",
                hint=f"Set project: {actor.project}",
            )
        return spec

    def _package_must_exist(self, spec: JobSpec, actor: Actor) -> None:
        if spec.code is not None and not self._packages.has(spec.code, actor, spec.project):
            detail = f"project {spec.project!r} has no package {spec.code}: upload it first"
            raise Invalid(
                "The spec names code that is not there", errors=[{"pointer": "/code", "detail": detail}]
            )

    def _insert(self, tx: Tx, spec: JobSpec, actor: Actor, now: float) -> JobRow:
        id = ids.new_job_id(now)
        while jobs.taken(tx, id):
            id = ids.new_job_id(now)
        dumped = spec.model_dump(mode="json")
        return jobs.insert_new(tx, id, spec=dumped, actor=actor.name, warnings=[], at=now)


def parsed(data: Mapping[str, Any]) -> JobSpec:
    """Raises Invalid with a pointer per wrong field."""
    try:
        return parse_spec(data)
    except SpecError as error:
        raise invalid_spec(error) from None


def invalid_spec(error: SpecError) -> Invalid:
    errors: list[FieldError] = [{"pointer": e["pointer"], "detail": e["detail"]} for e in error.errors]
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Invalid(f"{first['pointer'] or 'The spec'}: {first['detail']}{more}", errors=errors)


def body_digest(data: Mapping[str, Any]) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()

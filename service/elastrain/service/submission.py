"""Submitting: the door where everything that can be known about a spec is checked, then one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastrain.service import ids
from elastrain.service.auth import Actor
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.errors import FieldError, Forbidden, Invalid
from elastrain.service.finding import find
from elastrain.service.idempotency import Once
from elastrain.service.origins import begun_from
from elastrain.service.pace import Breath
from elastrain.service.packages import Packages
from elastrain.service.scheduling import Grant, Wait, facts
from elastrain.service.scheduling.asks import Resources
from elastrain.service.store import Store, Tx, feed, fresh, installation
from elastrain.service.store.rows import JobRow
from elastrain.service.views import JobViews
from elastrain.trainers.spec import JobSpec, SpecError, parse_spec, warnings

Json = dict[str, Any]
ROUTE = "POST /jobs"


class Submission:
    def __init__(
        self,
        store: Store,
        once: Once,
        packages: Packages,
        job_views: JobViews,
        driver: Resources,
        clock: Clock,
        changes: Changes,
    ) -> None:
        self._store = store
        self._once = once
        self._packages = packages
        self._views = job_views
        self._driver = driver
        self._known = facts.Known()
        self._clock = clock
        self._changes = changes

    def submit(self, data: Mapping[str, Any], actor: Actor, key: str | None) -> tuple[Json, bool]:
        """-> (job, created). Key, spec and job are one transaction: a repeated key finds the same job."""
        spec = self._checked(data, actor)

        def act(tx: Tx) -> tuple[str, Json]:
            row = self._insert(tx, spec, actor)
            return row.id, self._views.fresh(tx, row)

        return self._told(self._once.do(actor, ROUTE, key, data, act))

    def clone(
        self, job_id: str, overrides: Mapping[str, Any], actor: Actor, key: str | None
    ) -> tuple[Json, bool]:
        """-> (job, created): a new job from scratch, with the spec of one that there is and `overrides`."""
        with self._store.read() as tx:
            of = find(tx, job_id, actor)
        spec = self._checked(merged(of.spec, overrides), actor)

        def act(tx: Tx) -> tuple[str, Json]:
            row = self._insert(tx, spec, actor)
            data = {"from": of.id, "changes": dict(overrides)}
            feed.add_event(tx, row.id, "job.cloned", f"It is a clone of {of.id}", data, row.created_at)
            return row.id, self._views.fresh(tx, row)

        return self._told(self._once.do(actor, f"POST /jobs/{of.id}/clone", key, overrides, act))

    def _told(self, done: tuple[Json, bool]) -> tuple[Json, bool]:
        self._changes.tell(done[0]["id"], decide=True)
        return done

    def dry_run(self, data: Mapping[str, Any], actor: Actor) -> Json:
        spec = self._checked(data, actor)
        self._package_must_exist(spec, actor)
        now, breathe = self._clock.now(), Breath()
        with self._store.read() as tx:
            begun = begun_from(tx, spec, actor)
            dumped = begun.spec.model_dump(mode="json")
            seen = installation.read(tx, "cluster")
            known = facts.read(tx, now, self._known, breathe)
        ask = facts.new_ask("(this job)", dumped, now)
        answer = facts.plan_one(ask, known, seen[1] if seen else None, self._driver, breathe)
        granted = isinstance(answer, Grant)
        return {
            "spec": dumped,
            "schedulable": granted,
            "would_get": answer.workers if isinstance(answer, Grant) else 0,
            "blocked_by": answer.message if isinstance(answer, Wait) else None,
            "warnings": [*warnings(spec), *begun.warnings],
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

    def _insert(self, tx: Tx, spec: JobSpec, actor: Actor) -> JobRow:
        self._package_must_exist(spec, actor)
        spec, told = begun_from(tx, spec, actor)
        now, dumped = self._clock.now(), spec.model_dump(mode="json")
        id, told = ids.new_job_id(now), [*warnings(spec), *told]
        return fresh.insert_new(tx, id, spec=dumped, actor=actor.name, warnings=told, at=now)


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


def merged(spec: Mapping[str, Any], overrides: Mapping[str, Any]) -> Json:
    """`spec` with the fields of `overrides`, section by section; another `name` makes it another section."""
    result = dict(spec)
    for field, value in overrides.items():
        old = result.get(field)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            same = value.get("name", old.get("name")) == old.get("name")
            value = merged(old, value) if same else value
        result[field] = value
    return result

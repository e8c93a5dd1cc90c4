"""Projects: their quotas and weights, and what each uses now."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from elastrain.service.auth import Actor
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock, rfc3339
from elastrain.service.errors import Conflict, NotFound
from elastrain.service.idempotency import Once
from elastrain.service.scheduling import Ask, facts
from elastrain.service.scheduling.usage import share_of
from elastrain.service.store import Store, Tx, installation, projects, queued
from elastrain.service.store.rows import ProjectRow

Json = dict[str, Any]
# every job that names no other one is in it, so it is always there
DEFAULT = "default"
ROUTE = "POST /projects"


class Projects:
    def __init__(self, store: Store, once: Once, clock: Clock, changes: Changes) -> None:
        self._store = store
        self._once = once
        self._clock = clock
        self._changes = changes

    def create(
        self, body: Mapping[str, Any], actor: Actor, idempotency_key: str | None = None
    ) -> tuple[Json, bool]:
        """-> (project, created); created is False if this key made it before. Raises Conflict, Forbidden.

        body: {name, quota?: {workers?, gpus?}, weight?}, as the API has checked it.
        """
        actor.must("admin", "create projects")
        name = str(body["name"])

        def act(tx: Tx) -> tuple[None, Json]:
            if name == DEFAULT or not projects.add(tx, name, self._clock.now(), **_values(body)):
                hint = f"PATCH /v1/projects/{name} changes it."
                raise Conflict(f"There is a project {name!r} already", hint=hint)
            return None, _view(_row(tx, name))

        done = self._once.do(actor, ROUTE, idempotency_key, body, act)
        self._changes.tell("", decide=True)
        return done

    def change(self, name: str, body: Mapping[str, Any], actor: Actor) -> Json:
        """As `create`; what the body leaves out stays, and null is no limit. Raises NotFound."""
        actor.must("admin", "change projects")
        with self._store.write() as tx:
            if projects.find(tx, name) is None:
                if name != DEFAULT:
                    raise NotFound(f"There is no project {name[:80]!r}", hint="POST /v1/projects makes one.")
                projects.add(tx, name, self._clock.now())
            if values := _values(body):
                projects.change(tx, name, **values)
            made = _view(_row(tx, name))
        self._changes.tell("", decide=True)
        return made

    def listed(self, actor: Actor) -> Json:
        """Those that were made, and those that have jobs."""
        with self._store.read() as tx:
            running, waiting, known = facts.running(tx), queued.by_project(tx), projects.every(tx)
        rows = {row.name: row for row in known}
        names = sorted({DEFAULT, *rows, *waiting, *(ask.project for ask in running)})
        items = [_view(rows.get(name) or _unlimited(name)) for name in names if actor.sees(name)]
        return {"items": items, "next_cursor": None}

    def usage(self, actor: Actor) -> Json:
        """What the scheduler counts against quotas and shares."""
        with self._store.read() as tx:
            running, waiting, known = facts.running(tx), queued.by_project(tx), projects.every(tx)
            seen = installation.read(tx, "cluster")
        total: Counter[str] = Counter()
        for node in seen[1]["nodes"] if seen else ():
            total.update(node["resources"] if node["alive"] else {})
        rows = {row.name: row for row in known}
        asks: defaultdict[str, list[Ask]] = defaultdict(list)
        for ask in running:
            asks[ask.project].append(ask)
        names = sorted({DEFAULT, *rows, *waiting, *asks})
        items = [
            _usage(rows.get(name) or _unlimited(name), asks[name], waiting.get(name, (0, 0)), total)
            for name in names
            if actor.sees(name)
        ]
        return {"items": items, "next_cursor": None}


def _usage(row: ProjectRow, running: list[Ask], waiting: tuple[int, int], total: Mapping[str, float]) -> Json:
    """waiting: (jobs, workers that they need to start)"""
    workers = sum(ask.holds + ask.servers for ask in running)
    used: defaultdict[str, float] = defaultdict(float)
    for name, amount in (item for ask in running for item in ask.whole(ask.holds).items()):
        used[name] += amount
    return {
        "project": row.name,
        "running": {
            "jobs": len(running),
            "workers": workers,
            "gpus": used.get("GPU", 0.0),
            "cpus": used.get("CPU", 0.0),
        },
        "waiting": {"jobs": waiting[0], "workers": waiting[1]},
        "share": round(share_of(used, total), 4),
        "weight": row.weight,
        "quota": {"workers": row.quota_workers, "gpus": row.quota_gpus},
    }


def _view(row: ProjectRow) -> Json:
    quota = {"workers": row.quota_workers, "gpus": row.quota_gpus}
    return {"name": row.name, "weight": row.weight, "quota": quota, "created_at": rfc3339(row.created_at)}


def _unlimited(name: str) -> ProjectRow:
    return ProjectRow(name, 1.0, None, None, None)


def _row(tx: Tx, name: str) -> ProjectRow:
    found = projects.find(tx, name)
    assert found is not None
    return found


def _values(body: Mapping[str, Any]) -> dict[str, Any]:
    """Columns that the body names; a quota is changed limit by limit."""
    limits = {f"quota_{name}": limit for name, limit in body.get("quota", {}).items()}
    return {**limits, **({"weight": float(body["weight"])} if "weight" in body else {})}

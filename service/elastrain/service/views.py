"""Rows as the API shows them: the shapes of the contract, times RFC 3339."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from typing import Any

from elastrain.service.account import account, advice
from elastrain.service.clock import Clock, rfc3339
from elastrain.service.jobs import ENDED, Reason, Status, allowed_actions
from elastrain.service.retention import Retention
from elastrain.service.scheduling.asks import STRANGER
from elastrain.service.store import Tx, attempts, fresh, jobs, leftovers, metrics, plans, queued
from elastrain.service.store.feed import Event, Point
from elastrain.service.store.plans import First, PlanRow
from elastrain.service.store.rows import AttemptRow, JobRow, QueuedRow, SegmentRow, TransitionRow

Json = dict[str, Any]
Queued = JobRow | QueuedRow

# pages of Ray's dashboard: the newest attempt's own one, those of all actors (ours begin with the job's name)
# and of all metrics (ours begin with elastrain_job), and its list of Train runs (named as actors are), JSON
LINKS = {
    "ray_dashboard": "{dashboard}/#/jobs/{submission}",
    "ray_actors": "{dashboard}/#/actors",
    "ray_metrics": "{dashboard}/#/metrics",
    "ray_train": "{dashboard}/api/train/v2/runs/v1",
}


class JobViews:
    """Jobs as the API shows them. dashboard_url: where people find Ray's dashboard."""

    def __init__(self, dashboard_url: str, retention: Retention, clock: Clock) -> None:
        self._dashboard_url = dashboard_url
        self._retention = retention
        self._clock = clock
        self._plan: tuple[PlanRow, dict[str, int], str | None] = PlanRow(0, 0.0, [], None), {}, None

    def one(self, tx: Tx, row: JobRow) -> Json:
        return self.many(tx, [row])[0]

    def many(self, tx: Tx, rows: Sequence[JobRow]) -> list[Json]:
        ids = [row.id for row in rows]
        tried = [row.id for row in rows if row.attempt]  # others have no metrics
        history, latest = jobs.history(tx, ids), metrics.latest(tx, tried) if tried else {}
        current, notices = attempts.current(tx, tried), self._notices(tx, rows)
        queue = self.queue(tx) if any(row.status is Status.QUEUED for row in rows) else None
        return [
            {
                **_core(row, queue, history[row.id]),
                "warnings": [*row.warnings, *notices.get(row.id, ())],
                "metrics": {"latest": latest.get(row.id, {})},
                **self._of_attempt(current.get(row.id)),
            }
            for row in rows
        ]

    def fresh(self, tx: Tx, row: JobRow) -> Json:
        """A job that this transaction has inserted. Its place may be one too many, if the plan was made in
        the very moment in which others came.
        """
        plan, places, whose = self._planned(tx)
        last = len(places) + queued.before(tx, plan.at, row) + 1
        queue = Queue(places, {row.id: last}, plan.first, whose)
        shown = _core(row, queue, fresh.history(row))
        return {**shown, "metrics": {"latest": {}}, **self._of_attempt(None)}

    def _notices(self, tx: Tx, rows: Sequence[JobRow]) -> dict[str, list[str]]:
        """{job: what is said of it because it is removed soon}"""
        now = self._clock.now()
        going = {row.id: row for row in rows if self._retention.soon(row, now)}
        holdings = leftovers.holdings(tx, list(going))
        return {id: [self._retention.warning(going[id], holds)] for id, holds in holdings.items()}

    def queue(self, tx: Tx) -> Queue:
        """As it was planned last, with those behind that were queued since."""
        plan, places, whose = self._planned(tx)
        newer = [id for id in queued.since(tx, plan.at) if id not in places]
        more = {id: place for place, id in enumerate(newer, start=len(places) + 1)}
        return Queue(places, more, plan.first, whose)

    def _planned(self, tx: Tx) -> tuple[PlanRow, dict[str, int], str | None]:
        """The newest plan, {job: its place in it, from 1}, and the project of whom the others wait behind."""
        if plans.version(tx) != self._plan[0].version:
            plan = plans.read(tx)
            whose = jobs.project_of(tx, plan.first.job) if plan.first else None
            self._plan = plan, {id: place for place, id in enumerate(plan.queue, start=1)}, whose
        return self._plan

    def _of_attempt(self, attempt: AttemptRow | None) -> Json:
        """What the newest attempt adds: where Ray shows it, and once it is over, what is known of its end."""
        if attempt is None:
            return {"links": dict.fromkeys(LINKS), "receipt": None}
        at = {"dashboard": self._dashboard_url, "submission": attempt.submission_id}
        links = {name: page.format_map(at) for name, page in LINKS.items()}
        receipt = {"attempt": attempt.number, **attempt.receipt} if attempt.receipt else None
        return {"links": links, "receipt": receipt if attempt.state == "ended" else None}


@dataclass(frozen=True)
class Queue:
    """places, newer: {job: its place, from 1}. first: whom the others wait behind; whose: that one's
    project."""

    places: Mapping[str, int]
    newer: Mapping[str, int]
    first: First | None
    whose: str | None

    def place(self, row: Queued) -> int:
        """One that is in neither was queued in this very moment, or by a process with another clock."""
        last = len(self.places) + len(self.newer)
        return self.places.get(row.id) or self.newer.get(row.id) or last + 1

    def why(self, row: Queued) -> str | None:
        """The sentence that tells what the job waits for, wherever it is told."""
        if row.reason != Reason.BEHIND_OTHER_JOBS or self.first is None:
            return row.message
        title = self.first.title if row.project == self.whose else STRANGER
        return f"It waits behind {title}, which needs {self.first.needs}"


def queue_item(row: Queued, queue: Queue) -> Json:
    return {
        "id": row.id,
        "name": row.name,
        "project": row.project,
        "priority": row.priority,
        "position": queue.place(row),
        "reason": row.reason,
        "blocked_by": queue.why(row),
        "short_of": _short_of(row),
    }


def _short_of(row: Queued) -> Json | None:
    """What it lacks for its minimum, counted in workers and in the GPUs that they take."""
    if not row.short_of:
        return None
    gpus = int(row.short_of * row.gpus_each)
    return {"workers": row.short_of, **({"gpus": gpus} if gpus else {})}


def event(item: Event) -> Json:
    shown = {"id": item.position, "at": rfc3339(item.at), "type": item.type, "message": item.message}
    return {**shown, "data": item.data}


def feed_row(item: Event | Point | SegmentRow) -> Json:
    """{position, kind, data}; a log row gets its text later, from object storage."""
    if isinstance(item, Event):
        return {"position": item.position, "kind": "event", "data": event(item)}
    if isinstance(item, Point):
        data = {"step": item.step, "at": rfc3339(item.at), "attempt": item.attempt, "epoch_no": item.epoch_no}
        return {"position": item.position, "kind": "metric", "data": {**data, "values": item.values}}
    data = {"offset": item.offset, "at": rfc3339(item.at), "worker": item.worker, "attempt": item.attempt}
    return {"position": item.position, "kind": "log", "data": {**data, "bytes": item.bytes}}


def worker(row: Json) -> Json:
    names = ("id", "group", "node", "pid", "rank", "state", "joined_step", "share", "attempt")
    return {name: row[name] for name in names}


def generation(row: Json) -> Json:
    names = ("generation", "step", "workers", "cause", "pause_ms", "attempt")
    return {**{name: row[name] for name in names}, "formed_at": rfc3339(row["formed_at"])}


def checkpoint(row: Json) -> Json:
    names = ("step", "epoch", "bytes", "state", "params_digest", "state_digest", "metrics", "pinned", "files")
    shown = {name: row[name] for name in names}
    return {**shown, "attempt": row["attempt"], "created_at": rfc3339(row["created_at"])}


def version() -> Json:
    return {"server": installed_version("elastrain"), "api": "1", "min_client": "0.1.0"}


def _core(row: JobRow, queue: Queue | None, history: Sequence[TransitionRow]) -> Json:
    alive = row.status not in ENDED
    return {
        "id": row.id,
        "name": row.name,
        "project": row.project,
        "priority": row.priority,
        "labels": row.spec["labels"],
        "status": row.status.value,
        "reason": row.reason,
        "message": queue.why(row) if queue and row.status is Status.QUEUED else row.message,
        "failed_by": row.failed_by,
        "since": rfc3339(row.since),
        "desired": row.desired.value,
        "attempt": row.attempt,
        "spec": row.spec,
        "workers": {
            "min": row.workers_min,
            "max": row.workers_max,
            "target": row.workers_target,
            "active": row.workers_active,
        },
        "progress": {
            "step": row.step,
            "total_steps": row.total_steps,
            "epoch": row.epoch,
            "eta_s": row.eta_s,
            "samples_per_s": row.samples_per_s,
        },
        "scaling": [[int(workers), speed] for workers, (speed, _) in _measured(row)],
        "warnings": row.warnings,
        "advice": advice(row.curve["points"], row.workers_max) if row.curve and alive else [],
        "account": account(history),
        "created_by": row.created_by,
        "counters": {
            "attempts": row.attempts_made,
            "retries_left": max(0, int(row.spec["retries"]) - row.retries_used),
            "workers_replaced": row.workers_replaced,
            "steps_skipped": row.steps_skipped,
        },
        "created_at": rfc3339(row.created_at),
        "started_at": rfc3339(row.started_at),
        "finished_at": rfc3339(row.finished_at),
        "checkpoint_requests": {"asked": row.checkpoint_no, "done": row.checkpoint_done},
        "pinned": row.pinned,
        "allowed_actions": allowed_actions(row.status, row.desired),
        "queue": _place(row, queue),
        "transitions": [_transition(item) for item in history],
    }


def _measured(row: JobRow) -> list[tuple[str, list[float]]]:
    points: dict[str, list[float]] = row.curve["points"] if row.curve else {}
    return sorted(points.items(), key=lambda point: int(point[0]))


def _place(row: JobRow, queue: Queue | None) -> Json | None:
    if row.status is not Status.QUEUED or queue is None:
        return None
    item = queue_item(row, queue)
    return {name: item[name] for name in ("position", "blocked_by", "short_of")}


def _transition(row: TransitionRow) -> Json:
    return {"status": row.status, "reason": row.reason, "at": rfc3339(row.at), "actor": row.actor}

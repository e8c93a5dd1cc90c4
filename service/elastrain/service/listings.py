"""Questions about jobs and what they left behind, answered from the store alone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from elastrain.service import views
from elastrain.service.auth import Actor
from elastrain.service.casts import MAX_INT
from elastrain.service.clock import rfc3339
from elastrain.service.cluster_check import FACT
from elastrain.service.errors import Invalid, NotFound
from elastrain.service.finding import find
from elastrain.service.jobs import ENDED, Status
from elastrain.service.store import Store, Tx, attempts, feed, installation, jobs, metrics, queued, training
from elastrain.service.store.rows import JobRow, SegmentRow

Json = dict[str, Any]
MAX_PAGE = 1000
# what a page of the feed brings of logs at most: a follower holds it in memory, and followers are many
FEED_LOG_BYTES = 4 * 1024 * 1024
# how long after a job's end its driver may still bring logs
LAST_WORDS_S = 15.0


class Listings:
    def __init__(self, store: Store, job_views: views.JobViews) -> None:
        self._store = store
        self._views = job_views

    def jobs(
        self,
        actor: Actor,
        status: str | None,
        project: str | None,
        label: str | None,
        limit: int,
        cursor: str | None,
    ) -> Json:
        limit = _limit(limit)
        if project is not None and not actor.sees(project):
            return _page([])
        with self._store.read() as tx:
            rows = jobs.page(
                tx,
                statuses=statuses_in(status),
                project=project or actor.project,
                labels=labels_in(label),
                before=_jobs_cursor(cursor),
                limit=limit + 1,
            )
            last = rows[limit - 1] if len(rows) > limit else None
            items = self._views.many(tx, rows[:limit])
        return _page(items, f"{last.created_at!r}_{last.id}" if last else None)

    def events(self, actor: Actor, job_id: str, after: int, limit: int) -> Json:
        limit = _limit(limit)
        with self._store.read() as tx:
            rows = feed.events_after(tx, find(tx, job_id, actor).id, after, limit + 1)
        more = str(rows[limit - 1].position) if len(rows) > limit else None
        return _page([views.event(row) for row in rows[:limit]], more)

    def metrics(
        self, actor: Actor, job_id: str, names: Collection[str] | None, from_step: int, points: int
    ) -> Json:
        with self._store.read() as tx:
            id = find(tx, job_id, actor).id
            series = metrics.series(tx, id, names, from_step, max(1, min(points, 100_000)))
            overtaken = metrics.superseded(tx, id)
        shown: Json = {
            name: [[s.step, s.value, rfc3339(s.at)] for s in samples] for name, samples in series.items()
        }
        shown["superseded"] = [list(item) for item in overtaken]
        return shown

    def workers(self, actor: Actor, job_id: str, attempt: int | None) -> Json:
        with self._store.read() as tx:
            row = find(tx, job_id, actor)
            found = training.list_workers(tx, row.id, row.attempt if attempt is None else attempt)
        return _page([views.worker(item) for item in found])

    def generations(self, actor: Actor, job_id: str, limit: int, cursor: str | None) -> Json:
        limit = _limit(limit)
        with self._store.read() as tx:
            rows = training.list_generations(tx, find(tx, job_id, actor).id, _pair_cursor(cursor), limit + 1)
        last = rows[limit - 1] if len(rows) > limit else None
        more = f"{last['attempt']}_{last['generation']}" if last else None
        return _page([views.generation(row) for row in rows[:limit]], more)

    def checkpoints(self, actor: Actor, job_id: str) -> Json:
        with self._store.read() as tx:
            rows = training.list_checkpoints(tx, find(tx, job_id, actor).id)
        return _page([views.checkpoint(row) for row in rows])

    def open_attempts(self) -> list[str]:
        with self._store.read() as tx:
            return [attempt.job for attempt in attempts.with_driver(tx)]

    def cluster(self) -> Json:
        with self._store.read() as tx:
            seen, checked = installation.read(tx, "cluster"), installation.read(tx, FACT)
        check = None if checked is None else {"at": rfc3339(checked[0]), **checked[1]}
        if check is not None:
            del check["mark"]
        if seen is None:
            detail = "The reconciler has not looked at Ray yet"
            found: Json = {
                "nodes": [],
                "capacity_max": None,
                "reachable": False,
                "detail": detail,
                "at": None,
            }
            return {**found, "check": check}
        return {"capacity_max": None, **seen[1], "at": rfc3339(seen[0]), "check": check}

    def counts(self) -> dict[str, int]:
        with self._store.read() as tx:
            return {status.value: 0 for status in Status} | jobs.counts(tx)

    def queue(self, actor: Actor) -> Json:
        with self._store.read() as tx:
            rows, queue = queued.shown(tx, actor.project), self._views.queue(tx)
        return _page([views.queue_item(row, queue) for row in sorted(rows, key=queue.place)])


def find_checkpoint(tx: Tx, row: JobRow, step: int | str) -> Json:
    """The row of a checkpoint; "latest" is the newest saved one. Raises NotFound."""
    known = training.list_checkpoints(tx, row.id)
    if step == "latest":
        known = [item for item in known if item["state"] == "saved"][-1:]
        if known:
            return known[0]
        raise NotFound(f"Job {row.id} has no checkpoint yet")
    for item in known:
        if str(item["step"]) == str(step):
            return item
    steps = ", ".join(str(item["step"]) for item in known) or "none"
    raise NotFound(f"Job {row.id} has no checkpoint at step {str(step)[:40]}; it has: {steps}")


def feed_page(tx: Tx, row: JobRow, after: int, kinds: Collection[str], limit: int, now: float) -> Json:
    limit = _limit(limit)
    found = feed.page(tx, row.id, after, kinds, limit)
    rows, end = _of_a_bearable_size(found), None
    if len(rows) == len(found) < limit and _all_said(tx, row, now):
        end = {
            "status": row.status.value,
            "reason": row.reason,
            "message": row.message,
            "failed_by": row.failed_by,
        }
    position = rows[-1].position if rows else after
    return {"rows": [views.feed_row(item) for item in rows], "position": position, "end": end}


def _of_a_bearable_size(rows: list[feed.Event | feed.Point | SegmentRow]) -> list[Any]:
    """The first of them, one at least."""
    size = 0
    for count, row in enumerate(rows):
        size += row.bytes if isinstance(row, SegmentRow) else 0
        if size > FEED_LOG_BYTES and count:
            return rows[:count]
    return rows


def _all_said(tx: Tx, row: JobRow, now: float) -> bool:
    """The job has ended, and its driver has had time to post what was left."""
    if row.status not in ENDED:
        return False
    attempt = attempts.get(tx, row.id, row.attempt) if row.attempt else None
    return attempt is None or not attempt.has_driver or now - (row.finished_at or now) > LAST_WORDS_S


def _page(items: list[Json], next_cursor: str | None = None) -> Json:
    return {"items": items, "next_cursor": next_cursor}


def _limit(limit: int) -> int:
    if limit < 1:
        raise Invalid(f"limit is {limit}; give 1 to {MAX_PAGE}")
    return min(limit, MAX_PAGE)


def statuses_in(text: str | None) -> list[str]:
    wanted = _parts("status", text)
    for part in wanted:
        if part not in list(Status):
            raise Invalid(f"{part[:40]!r} is no status; there are {', '.join(Status)}")
    return wanted


def _parts(name: str, text: str | None) -> list[str]:
    """Those between the commas. Raises Invalid for a filter that is given and names nothing: it would fit
    every job."""
    parts = [part for part in (text or "").split(",") if part.strip()]
    if text and not parts:
        raise Invalid(f"{name} is {text[:40]!r}, which names nothing: leave it out, or name one")
    return parts


def labels_in(text: str | None) -> list[tuple[str, str]]:
    pairs = [part.partition(":") for part in _parts("label", text)]
    if any(not colon for _, colon, _ in pairs):
        raise Invalid(f"label is {(text or '')[:80]!r}; write key:value")
    return [(key, value) for key, _, value in pairs]


def _jobs_cursor(text: str | None) -> tuple[float, str] | None:
    if not text:
        return None
    at, _, id = text.partition("_")
    try:
        return float(at), id
    except ValueError:
        raise Invalid(f"{text[:80]!r} is no cursor; take next_cursor of the page before") from None


def _pair_cursor(text: str | None) -> tuple[int, int]:
    try:
        attempt, generation = map(int, (text or "0_-1").split("_"))
        if max(abs(attempt), abs(generation)) > MAX_INT:
            raise ValueError(text)
        return attempt, generation
    except ValueError:
        raise Invalid(f"{(text or '')[:80]!r} is no cursor; take next_cursor of the page before") from None

"""What happens to one job, in one numbered order: events, metrics and log segments share the positions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, func, insert, select, update

from elastrain.service.store.engine import Tx
from elastrain.service.store.rows import SegmentRow
from elastrain.service.store.schema import events, jobs, log_segments, metrics


@dataclass(frozen=True)
class Event:
    position: int
    at: float
    type: str
    message: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Point:
    """What one fact said about one step."""

    position: int
    step: int
    at: float
    attempt: int
    epoch_no: int
    values: dict[str, float | str]


_ADD = insert(events)
_TAKE = (
    update(jobs)
    .where(jobs.c.id == bindparam("_job"))
    .values(position=jobs.c.position + bindparam("_count"))
    .returning(jobs.c.position)
)


def take_positions(tx: Tx, job: str, count: int = 1) -> int:
    """The last of `count` new positions. Takes the job row's lock, so they are committed in their order."""
    return int(tx.execute(_TAKE, {"_job": job, "_count": count}).scalar_one())


def add_event(tx: Tx, job: str, type: str, message: str, data: dict[str, Any], at: float) -> int:
    position = take_positions(tx, job)
    values = {"job": job, "position": position, "at": at, "type": type, "message": message, "data": data}
    tx.execute(_ADD, values)
    return position


def events_after(tx: Tx, job: str, after: int, limit: int) -> list[Event]:
    c = events.c
    query = select(c.position, c.at, c.type, c.message, c.data).where(c.job == job, c.position > after)
    return [Event(*row) for row in tx.execute(query.order_by(c.position).limit(limit))]


def points_after(tx: Tx, job: str, after: int, limit: int) -> list[Point]:
    """Whole facts: a fact's values are never split over two pages."""
    c = metrics.c
    pages = (
        select(c.position)
        .where(c.job == job, c.position > after)
        .distinct()
        .order_by(c.position)
        .limit(limit)
    )
    columns = (c.position, c.name, c.step, c.value, c.word, c.at, c.attempt, c.epoch_no)
    query = select(*columns).where(c.job == job, c.position.in_(pages.scalar_subquery()))
    found: dict[int, Point] = {}
    for position, name, step, value, word, at, attempt, epoch_no in tx.execute(
        query.order_by(c.position, c.name)
    ):
        point = found.setdefault(position, Point(position, step, at, attempt, epoch_no, {}))
        point.values[name] = word if value is None else value
    return list(found.values())


def add_segment(tx: Tx, job: str, attempt: int, worker: str, offset: int, size: int, at: float) -> None:
    """A repeated or shorter segment at a known offset changes nothing."""
    c = log_segments.c
    same = select(c.position).where(
        c.job == job, c.attempt == attempt, c.worker == worker, c.offset == offset
    )
    if tx.execute(same).first() is not None:
        return
    position = take_positions(tx, job)
    values = {"job": job, "position": position, "attempt": attempt, "worker": worker}
    tx.execute(insert(log_segments).values(**values, offset=offset, bytes=size, at=at))


def segments(
    tx: Tx,
    job: str,
    *,
    attempt: int | None = None,
    worker: str | None = None,
    after: int = 0,
    limit: int | None = None,
    newest_first: bool = False,
) -> list[SegmentRow]:
    """In the order of position; of all attempts and workers unless given."""
    c = log_segments.c
    query = select(c.position, c.attempt, c.worker, c.offset, c.bytes, c.at).where(
        c.job == job, c.position > after
    )
    if attempt is not None:
        query = query.where(c.attempt == attempt)
    if worker is not None:
        query = query.where(c.worker == worker)
    query = query.order_by(c.position.desc() if newest_first else c.position)
    return [SegmentRow(*row) for row in tx.execute(query if limit is None else query.limit(limit))]


def file_segments(tx: Tx, job: str, attempt: int, worker: str, start: int, end: int) -> list[SegmentRow]:
    """Those pieces of one worker's output that hold bytes of [start, end), in the order of offset."""
    c = log_segments.c
    query = select(c.position, c.attempt, c.worker, c.offset, c.bytes, c.at)
    query = query.where(c.job == job, c.attempt == attempt, c.worker == worker)
    query = query.where(c.offset < end, c.offset + c.bytes > start)
    return [SegmentRow(*row) for row in tx.execute(query.order_by(c.offset))]


def file_end(tx: Tx, job: str, attempt: int, worker: str) -> int:
    """Bytes of one worker's output so far."""
    c = log_segments.c
    query = select(func.coalesce(func.max(c.offset + c.bytes), 0))
    return int(tx.execute(query.where(c.job == job, c.attempt == attempt, c.worker == worker)).scalar_one())


def logged_workers(tx: Tx, job: str, attempt: int | None = None) -> list[tuple[int, str]]:
    """(attempt, worker) of everything that has output."""
    c = log_segments.c
    query = select(c.attempt, c.worker).where(c.job == job).distinct().order_by(c.attempt, c.worker)
    if attempt is not None:
        query = query.where(c.attempt == attempt)
    return [(number, worker) for number, worker in tx.execute(query)]


def page(
    tx: Tx, job: str, after: int, kinds: Collection[str], limit: int
) -> list[Event | Point | SegmentRow]:
    """At most `limit` rows of these kinds (event, metric, log) in the order of position."""
    rows: list[Event | Point | SegmentRow] = []
    if "event" in kinds:
        rows += events_after(tx, job, after, limit)
    if "metric" in kinds:
        rows += points_after(tx, job, after, limit)
    if "log" in kinds:
        rows += segments(tx, job, after=after, limit=limit)
    return sorted(rows, key=lambda row: row.position)[:limit]

"""Metric points. What was computed again replaces what was said about the same steps before.

An era is (attempt, epoch_no); a new attempt, or a rollback inside one, begins the next. Its first point, at
step s, supersedes everything beyond s of older eras; at s itself a point supersedes the older of its name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.sql import ColumnElement

from elastrain.service.store.engine import Tx
from elastrain.service.store.feed import take_positions
from elastrain.service.store.schema import jobs, metrics_latest, metrics_superseded
from elastrain.service.store.schema import metrics as table

Value = float | str


@dataclass(frozen=True)
class NewPoint:
    """What an attempt says about one step."""

    step: int
    values: Mapping[str, float]
    epoch_no: int
    at: float


@dataclass(frozen=True)
class Sample:
    step: int
    value: Value
    at: float


def split(number: float) -> tuple[float | None, str | None]:
    """(value, word): JSON and SQL have no NaN and no infinity, so those are words."""
    if math.isnan(number):
        return None, "NaN"
    if math.isinf(number):
        return None, "Infinity" if number > 0 else "-Infinity"
    return number, None


def add(tx: Tx, job: str, attempt: int, points: Sequence[NewPoint]) -> None:
    """Points in the order in which they were made. Those of an era that was overtaken are history only."""
    position = take_positions(tx, job, len(points)) - len(points)
    era, newest = _era(tx, job), _latest_steps(tx, job)
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    stale: list[dict[str, Any]] = []
    for point in points:
        position += 1
        mine = (attempt, point.epoch_no)
        if mine > era:
            _begin_era(tx, job, point.step, mine, position)
            rows = {key: row for key, row in rows.items() if row["step"] <= point.step}
            era, newest = mine, _latest_steps(tx, job)
        for name, number in point.values.items():
            value, word = split(number)
            row = {
                "job": job,
                "position": position,
                "name": name,
                "step": point.step,
                "value": value,
                "word": word,
            }
            row |= {"at": point.at, "attempt": attempt, "epoch_no": point.epoch_no, "superseded": mine < era}
            if mine < era:
                stale.append(row)
                continue
            if newest.get(name, -1) >= point.step:
                _replace(tx, job, name, point.step)
            rows[name, point.step] = row  # a step is said once per name: the newest point counts
    if rows or stale:
        tx.execute(insert(table), [*rows.values(), *stale])
    for name in {name for name, _ in rows}:
        _set_latest(tx, max((r for (n, _), r in rows.items() if n == name), key=lambda row: row["step"]))


def series(
    tx: Tx, job: str, names: Collection[str] | None, from_step: int, points: int
) -> dict[str, list[Sample]]:
    """Per name at most `points` samples, steps ascending, evenly thinned, the newest always among them."""
    known = sorted(_latest_steps(tx, job))
    wanted = known if names is None else [name for name in known if name in names]
    return {name: _samples(tx, job, name, from_step, points) for name in wanted}


def latest(tx: Tx, ids: Collection[str]) -> dict[str, dict[str, Value]]:
    """{job: {name: newest value}}"""
    c = metrics_latest.c
    found: dict[str, dict[str, Value]] = {id: {} for id in ids}
    query = select(c.job, c.name, c.value, c.word).where(c.job.in_(ids)).order_by(c.name)
    for job, name, value, word in tx.execute(query):
        found[job][name] = word if value is None else value
    return found


def superseded(tx: Tx, job: str) -> list[tuple[int, int, int]]:
    """(first step, last step, attempt that had said it), in the order in which it happened."""
    c = metrics_superseded.c
    query = select(c.first_step, c.last_step, c.attempt).where(c.job == job).order_by(c.position)
    return [(first, last, attempt) for first, last, attempt in tx.execute(query)]


def _era(tx: Tx, job: str) -> tuple[int, int]:
    row = tx.execute(select(jobs.c.era_attempt, jobs.c.era_epoch_no).where(jobs.c.id == job)).one()
    return row[0], row[1]


def _latest_steps(tx: Tx, job: str) -> dict[str, int]:
    c = metrics_latest.c
    found = tx.execute(select(c.name, c.step).where(c.job == job))
    return {str(name): int(step) for name, step in found}


def _begin_era(tx: Tx, job: str, step: int, era: tuple[int, int], position: int) -> None:
    c = table.c
    older = (c.job == job) & c.superseded.is_(False) & _before(era)
    last, attempt = tx.execute(
        select(func.max(c.step), func.max(c.attempt)).where(older & (c.step >= step))
    ).one()
    if last is not None:
        tx.execute(update(table).where(older & (c.step > step)).values(superseded=True))
        values = {"first_step": step, "last_step": last, "attempt": attempt}
        tx.execute(insert(metrics_superseded).values(job=job, position=position, **values))
        tx.execute(_back_to(job, step))
    tx.execute(update(jobs).where(jobs.c.id == job).values(era_attempt=era[0], era_epoch_no=era[1]))


def _before(era: tuple[int, int]) -> ColumnElement[bool]:
    c = table.c
    return or_(c.attempt < era[0], (c.attempt == era[0]) & (c.epoch_no < era[1]))


def _back_to(job: str, step: int) -> Any:
    """Newest values that are no longer true: their steps will be computed again."""
    c = metrics_latest.c
    return delete(metrics_latest).where((c.job == job) & (c.step > step))


def _replace(tx: Tx, job: str, name: str, step: int) -> None:
    c = table.c
    same = (c.job == job) & (c.name == name) & (c.step == step) & c.superseded.is_(False)
    tx.execute(update(table).where(same).values(superseded=True))


def _set_latest(tx: Tx, row: Mapping[str, Any]) -> None:
    c = metrics_latest.c
    where = (c.job == row["job"]) & (c.name == row["name"])
    values = {name: row[name] for name in ("step", "value", "word", "attempt", "epoch_no")}
    if tx.execute(update(metrics_latest).where(where).values(**values)).rowcount == 0:
        tx.execute(insert(metrics_latest).values(job=row["job"], name=row["name"], **values))


def _samples(tx: Tx, job: str, name: str, from_step: int, points: int) -> list[Sample]:
    c = table.c
    ours = (c.job == job) & (c.name == name) & c.superseded.is_(False) & (c.step >= from_step)
    total = int(tx.execute(select(func.count()).select_from(table).where(ours)).scalar_one())
    stride = max(1, -(-total // max(1, points)))
    back = func.row_number().over(order_by=c.step.desc()).label("back")
    numbered = select(c.step, c.value, c.word, c.at, back).where(ours).subquery().c
    # counted from the newest, so that thinning never drops it
    query = select(numbered.step, numbered.value, numbered.word, numbered.at)
    query = query.where((numbered.back - 1) % stride == 0).order_by(numbered.step)
    return [Sample(step, word if value is None else value, at) for step, value, word, at in tx.execute(query)]

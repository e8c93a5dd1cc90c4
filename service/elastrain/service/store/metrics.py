"""Metric points. What was computed again replaces what was said about the same steps before.

An era is (attempt, epoch_no); a new attempt, or a rollback inside one, begins the next. Its first point, at
step s, supersedes everything beyond s of older eras; at s itself a point supersedes the older of its name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ColumnElement

from elastrain.service.store.engine import Tx
from elastrain.service.store.schema import jobs, metrics_latest, metrics_superseded
from elastrain.service.store.schema import metrics as table

Value = float | str
# what each batch of facts asks, made once
_TAKE = (
    update(jobs)
    .where(jobs.c.id == bindparam("_job"))
    .values(position=jobs.c.position + bindparam("_count"))
    .returning(jobs.c.position, jobs.c.era_attempt, jobs.c.era_epoch_no)
)
_ADD = insert(table)
_LATEST_STEPS = select(metrics_latest.c.name, metrics_latest.c.step).where(
    metrics_latest.c.job == bindparam("job")
)
_LATEST_OF = (
    select(*(metrics_latest.c[name] for name in ("job", "name", "value", "word")))
    .where(metrics_latest.c.job.in_(bindparam("ids", expanding=True)))
    .order_by(metrics_latest.c.name)
)
_LATEST = ("job", "name", "step", "value", "word", "attempt", "epoch_no")


def _put_latest(dialect: Any) -> Any:
    """The statement in one of the two dialects."""
    new = dialect.insert(metrics_latest)
    values = {name: new.excluded[name] for name in _LATEST[2:]}
    return new.on_conflict_do_update(index_elements=["job", "name"], set_=values)


_PUT_LATEST = {"sqlite": _put_latest(sqlite), "postgresql": _put_latest(postgresql)}


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
    position, era = _take_positions(tx, job, len(points))
    fresh = _Fresh(tx, job)
    for point in points:
        position += 1
        mine = (attempt, point.epoch_no)
        if mine > era:
            fresh.write()
            _begin_era(tx, job, point.step, mine, position)
            era, fresh = mine, _Fresh(tx, job)
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
            fresh.add(row)
    fresh.write()


class _Fresh:
    """Rows of one era that are written together. A step is said once per name: the newest point counts."""

    def __init__(self, tx: Tx, job: str) -> None:
        self._tx = tx
        self._known = _latest_steps(tx, job)
        self._rows: dict[tuple[str, int], dict[str, Any]] = {}
        self._history: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        name, step = row["name"], row["step"]
        if row["superseded"]:
            self._history.append(row)
            return
        if self._known.get(name, -1) >= step:
            _replace(self._tx, row["job"], name, step)
        self._rows[name, step] = row

    def write(self) -> None:
        if self._rows or self._history:
            self._tx.execute(_ADD, [*self._rows.values(), *self._history])
        newest: dict[str, dict[str, Any]] = {}
        for (name, step), row in self._rows.items():
            if step >= max(self._known.get(name, -1), newest[name]["step"] if name in newest else -1):
                newest[name] = row
        _set_latest(self._tx, list(newest.values()))


def series(
    tx: Tx, job: str, names: Collection[str] | None, from_step: int, points: int
) -> dict[str, list[Sample]]:
    """Per name at most `points` samples, steps ascending, evenly thinned, the newest always among them."""
    known = sorted(_latest_steps(tx, job))
    wanted = known if names is None else [name for name in known if name in names]
    return {name: _samples(tx, job, name, from_step, points) for name in wanted}


def latest(tx: Tx, ids: Collection[str]) -> dict[str, dict[str, Value]]:
    """{job: {name: newest value}}"""
    found: dict[str, dict[str, Value]] = {id: {} for id in ids}
    for job, name, value, word in tx.execute(_LATEST_OF, {"ids": list(ids)}).all():
        found[job][name] = word if value is None else value
    return found


def superseded(tx: Tx, job: str) -> list[tuple[int, int, int]]:
    """(first step, last step, attempt that had said it), in the order in which it happened."""
    c = metrics_superseded.c
    query = select(c.first_step, c.last_step, c.attempt).where(c.job == job).order_by(c.position)
    return [(first, last, attempt) for first, last, attempt in tx.execute(query)]


def _take_positions(tx: Tx, job: str, count: int) -> tuple[int, tuple[int, int]]:
    """As the feed takes them. -> (the one before the first, the era that counts until now)"""
    last, attempt, epoch_no = tx.execute(_TAKE, {"_job": job, "_count": count}).one()
    return last - count, (attempt, epoch_no)


def lost_steps(tx: Tx, job: str, after: int) -> int:
    """Steps that were superseded at positions beyond `after`: accepted once, and computed again since."""
    c = metrics_superseded.c
    lost = func.coalesce(func.sum(c.last_step - c.first_step + 1), 0)
    return int(tx.execute(select(lost).where(c.job == job, c.position > after)).scalar_one())


def _latest_steps(tx: Tx, job: str) -> dict[str, int]:
    found = tx.execute(_LATEST_STEPS, {"job": job}).all()
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
        _latest_back_to(tx, job, step)
    tx.execute(update(jobs).where(jobs.c.id == job).values(era_attempt=era[0], era_epoch_no=era[1]))


def _before(era: tuple[int, int]) -> ColumnElement[bool]:
    c = table.c
    return or_(c.attempt < era[0], (c.attempt == era[0]) & (c.epoch_no < era[1]))


def _latest_back_to(tx: Tx, job: str, step: int) -> None:
    """The newest values are those of the newest steps that still count."""
    c, latest = table.c, metrics_latest.c
    for name in (
        tx.execute(select(latest.name).where((latest.job == job) & (latest.step > step))).scalars().all()
    ):
        counts = (c.job == job) & (c.name == name) & c.superseded.is_(False)
        row = tx.execute(select(table).where(counts).order_by(c.step.desc()).limit(1)).first()
        if row is not None:
            _set_latest(tx, [dict(row._mapping)])
        else:
            tx.execute(delete(metrics_latest).where((latest.job == job) & (latest.name == name)))


def _replace(tx: Tx, job: str, name: str, step: int) -> None:
    c = table.c
    same = (c.job == job) & (c.name == name) & (c.step == step) & c.superseded.is_(False)
    tx.execute(update(table).where(same).values(superseded=True))


def _set_latest(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> None:
    """One row per name."""
    if rows:
        tx.execute(_PUT_LATEST[tx.dialect.name], [{name: row[name] for name in _LATEST} for row in rows])


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

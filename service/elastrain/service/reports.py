"""Facts from a driver, checked and written: what an attempt says becomes rows, and sometimes a new status.

A fact that is not understood is left out with a line in the service's log; it must not keep those after it
from being written, for the driver posts in order and would stop at it for ever.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastrain.service.clock import seconds
from elastrain.service.jobs import Reason, Signal, Status, advance
from elastrain.service.settle import End, settle
from elastrain.service.store import Tx, feed, jobs, metrics, training
from elastrain.service.store.rows import AttemptRow, JobRow

log = logging.getLogger(__name__)
Fact = Mapping[str, Any]

OUTCOMES = ("succeeded", "failed", "paused", "preempted", "cancelled")
MAX_TEXT = 20_000
MAX_NAME = 200
# the largest step and size that a column takes; more is a mistake of the sender
MAX_INT = 2**53
WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PROGRESS = ("step", "total_steps", "epoch", "eta_s", "samples_per_s", "steps_skipped", "workers_replaced")


class BadFact(ValueError):
    """This fact cannot be written; the message says why."""


def apply(tx: Tx, row: JobRow, attempt: AttemptRow, facts: Sequence[Fact], now: float) -> None:
    """Write the facts in their order. `row` is locked."""
    points: list[metrics.NewPoint] = []
    for fact in facts:
        try:
            if fact.get("kind") == "metric":
                points.append(_point(fact, now))
                continue
            _flush(tx, row, attempt, points)
            writer = WRITERS.get(str(fact.get("kind")))
            if writer is None:
                raise BadFact(f"unknown kind {fact.get('kind')!r}")
            writer(tx, jobs.get(tx, row.id), attempt, fact, seconds(fact.get("at"), now))
        except BadFact as error:
            log.warning("job %s, attempt %d: left out a fact: %s", row.id, attempt.number, error)
    _flush(tx, row, attempt, points)


def _flush(tx: Tx, row: JobRow, attempt: AttemptRow, points: list[metrics.NewPoint]) -> None:
    if points:
        metrics.add(tx, row.id, attempt.number, points)
        points.clear()


def _point(fact: Fact, now: float) -> metrics.NewPoint:
    values = fact.get("values")
    if not isinstance(values, Mapping):
        raise BadFact(f"a metric's values are {values!r}")
    numbers = {_metric_name(name): _float(value) for name, value in values.items()}
    return metrics.NewPoint(
        _int(fact, "step"), numbers, _int(fact, "epoch_no", 0), seconds(fact.get("at"), now)
    )


def _metric_name(name: object) -> str:
    """`superseded` is the key of the ranges in the API's answer, so a metric cannot have that name."""
    text = _clean(name)[:MAX_NAME] or "(unnamed)"
    return "superseded_" if text == "superseded" else text


def _event(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    type, data = _text(fact, "type")[:60], fact.get("data") or {}
    if not isinstance(data, Mapping):
        raise BadFact(f"an event's data is {data!r}")
    if type.startswith("job."):
        raise BadFact(f"the event {type!r} is the service's own")
    shown = {"attempt": attempt.number, **_strict(data)}
    feed.add_event(tx, row.id, type, _text(fact, "message"), shown, at)


def _worker(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    names = ("group", "node", "pid", "rank", "state", "joined_step", "share")
    values = {name: _strict(fact[name]) for name in names if name in fact}
    training.put_worker(tx, row.id, attempt.number, _name(fact, "id"), values)


def _generation(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    values = {name: _strict(fact[name]) for name in ("step", "workers", "cause", "pause_ms") if name in fact}
    values["formed_at"] = seconds(fact.get("formed_at"), at)
    training.put_generation(tx, row.id, attempt.number, _int(fact, "generation"), values)


def _checkpoint(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    names = ("epoch", "bytes", "state", "params_digest", "state_digest", "metrics", "files", "pinned")
    values = {name: _strict(fact[name]) for name in names if fact.get(name) is not None}
    values |= {"attempt": attempt.number}
    if fact.get("created_at") is not None:
        values["created_at"] = seconds(fact["created_at"], at)
    training.put_checkpoint(tx, row.id, _int(fact, "step"), values)


def _progress(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    if attempt.outcome is not None:
        return  # the attempt is over: what it says about itself as running is old
    values = {name: _number(fact[name], name) for name in _PROGRESS if fact.get(name) is not None}
    if "workers_active" in fact:
        values["workers_active"] = _int(fact, "workers_active")
    if "eta_s" in fact and fact["eta_s"] is None:
        values["eta_s"] = None
    jobs.change(tx, row.id, **values)
    if fact.get("status") == "running":
        if move := advance(row.status, Signal.RUNNING):
            row = jobs.move(tx, row, move.status, move.reason, None, "service", at)
        _explain(tx, row, fact, at)


def _explain(tx: Tx, row: JobRow, fact: Fact, at: float) -> None:
    """A running job that waits for workers says so; that is a reason, not another status."""
    waits = fact.get("reason") == Reason.WAITING_FOR_WORKERS
    reason = Reason.WAITING_FOR_WORKERS if waits else Reason.TRAINING
    if row.status is Status.RUNNING and row.reason != reason:
        message = _clean(fact.get("message") or "") or None
        jobs.change(tx, row.id, reason=reason, message=message)
        data = {"reason": reason.value}
        feed.add_event(tx, row.id, "job.reason", message or f"The job is {reason.value}", data, at)


def _log(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    size = _int(fact, "bytes")
    if size > 0:
        worker = _name(fact, "worker")
        feed.add_segment(tx, row.id, attempt.number, worker, _int(fact, "offset"), size, at)


def _outcome(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    settle(tx, row, attempt, end_of(fact), at)


def end_of(fact: Fact) -> End:
    """What a driver recorded as its outcome, as a fact or in object storage. Raises BadFact."""
    if fact.get("outcome") not in OUTCOMES:
        raise BadFact(f"the outcome is {fact.get('outcome')!r}; there are {', '.join(OUTCOMES)}")
    by = fact.get("failed_by")
    if by not in (None, "user", "infrastructure", "service"):
        raise BadFact(f"failed_by is {by!r}")
    message = fact.get("message")
    return End(
        fact["outcome"], _int(fact, "step", 0), by, None if message is None else _clean(message)[:MAX_TEXT]
    )


WRITERS: dict[str, Callable[[Tx, JobRow, AttemptRow, Fact, float], None]] = {
    "event": _event,
    "worker": _worker,
    "generation": _generation,
    "checkpoint": _checkpoint,
    "progress": _progress,
    "log": _log,
    "outcome": _outcome,
}


def _int(fact: Fact, name: str, default: int | None = None) -> int:
    value = fact.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
        raise BadFact(f"{name} is {value!r}, not a whole number")
    if not 0 <= value <= MAX_INT:
        raise BadFact(f"{name} is {value!r}, out of range")
    return int(value)


def _float(value: object) -> float:
    words = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
    if isinstance(value, str) and value in words:
        return words[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFact(f"a metric's value is {value!r}")
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _number(value: object, name: str) -> float | int | None:
    """A number for a column; one that is not finite is left unknown."""
    number = _float(value)
    if number in (float("inf"), float("-inf")) or number != number:
        return None
    return number if name in ("epoch", "eta_s", "samples_per_s") else int(number)


def _text(fact: Fact, name: str) -> str:
    return _clean(fact.get(name) or "")[:MAX_TEXT]


def _name(fact: Fact, name: str) -> str:
    """A worker's id ends up in storage keys and file names: only plain ones."""
    value = fact.get(name)
    if not isinstance(value, str) or not WORKER.fullmatch(value):
        raise BadFact(f"{name} is {value!r}, not a worker's id")
    return value


def _clean(value: object) -> str:
    """PostgreSQL takes no NUL, and no database takes half a surrogate pair."""
    return str(value).replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _strict(value: Any) -> Any:
    """Strict JSON: NaN and infinities as words, at any depth."""
    if isinstance(value, float):
        number, word = metrics.split(value)
        return word if number is None else number
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, Mapping):
        return {_clean(key): _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value

"""Facts from a driver, checked and written: what an attempt says becomes rows, and sometimes a new status.

A fact that is not understood is left out with a line in the service's log; it must not keep those after it
from being written, for the driver posts in order and would stop at it for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from elastrain.service import receipts
from elastrain.service.casts import (
    MAX_INT,
    BadFact,
    Fact,
    clean,
    fields,
    finite,
    real,
    strict,
    text,
    whole,
    worker_id,
)
from elastrain.service.clock import seconds
from elastrain.service.jobs import Reason, Signal, Status, advance
from elastrain.service.scheduling.curve import observe
from elastrain.service.settle import End, settle
from elastrain.service.store import Tx, attempts, feed, jobs, metrics, training
from elastrain.service.store.rows import AttemptRow, JobRow

log = logging.getLogger(__name__)

OUTCOMES = ("succeeded", "failed", "paused", "preempted", "cancelled")
MAX_MESSAGE = 20_000
MAX_METRIC_NAME = 200
MAX_WARNINGS = 50  # of a job


# what is still true of an attempt that another one has followed
HISTORY = ("metric", "event", "log")


class Taken(NamedTuple):
    """What a batch brought. facts: the new ones. lost_steps: accepted before, and now computed again."""

    facts: Sequence[Fact]
    lost_steps: int


def take(tx: Tx, row: JobRow, attempt: AttemptRow, first: int, facts: Sequence[Fact], now: float) -> Taken:
    """Write those facts of a numbered batch that are new, and count them with the attempt; returns them.

    (attempt, number) counts once, so a batch may be repeated. Of an attempt that was superseded only history
    is taken. `row` is locked.
    """
    fresh = facts[max(0, attempt.acked_seq + 1 - first) :]
    superseded = row.attempt != attempt.number or attempt.outcome == "lost"
    apply(tx, row, attempt, [f for f in fresh if not superseded or f.get("kind") in HISTORY], now)
    acked = max(attempt.acked_seq, first + len(facts) - 1)
    if acked != attempt.acked_seq:
        attempts.acknowledge(tx, row.id, attempt.number, acked)
    overtakes = any(_era(attempt, fact) > (row.era_attempt, row.era_epoch_no) for fact in fresh)
    return Taken(fresh, metrics.lost_steps(tx, row.id, row.position) if overtakes else 0)


def _era(attempt: AttemptRow, fact: Fact) -> tuple[int, int]:
    """Of a metric point; another fact has none."""
    epoch_no = fact.get("epoch_no", 0)
    if fact.get("kind") != "metric" or not isinstance(epoch_no, int):
        return (-1, 0)
    return (attempt.number, epoch_no)


def apply(tx: Tx, row: JobRow, attempt: AttemptRow, facts: Sequence[Fact], now: float) -> None:
    """Write the facts in their order. `row` is locked."""
    points: list[metrics.NewPoint] = []
    changed = False  # since `row` was read
    for fact in facts:
        try:
            if fact.get("kind") == "metric":
                points.append(_point(fact, now))
                continue
            _flush(tx, row, attempt, points)
            writer = WRITERS.get(str(fact.get("kind")))
            if writer is None:
                raise BadFact(f"unknown kind {fact.get('kind')!r}")
            at = min(seconds(fact.get("at"), now), now)  # a driver's clock may be ahead
            row = jobs.get(tx, row.id) if changed else row
            changed = writer in CHANGES_THE_JOB
            writer(tx, row, attempt, fact, at)
            if writer is _outcome:
                attempt = attempts.get(tx, row.id, attempt.number) or attempt
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
    numbers = {_metric_name(name): real(value) for name, value in values.items()}
    return metrics.NewPoint(
        whole(fact, "step"), numbers, whole(fact, "epoch_no", 0), seconds(fact.get("at"), now)
    )


def _metric_name(name: object) -> str:
    """`superseded` is the key of the ranges in the API's answer, so a metric cannot have that name."""
    shown = clean(name)[:MAX_METRIC_NAME] or "(unnamed)"
    return "superseded_" if shown == "superseded" else shown


def _event(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    type, data = text(fact, "type")[:60], fact.get("data") or {}
    if not isinstance(data, Mapping):
        raise BadFact(f"an event's data is {data!r}")
    if type.startswith("job."):
        raise BadFact(f"the event {type!r} is the service's own")
    shown = {"attempt": attempt.number, **strict(data)}
    feed.add_event(tx, row.id, type, text(fact, "message"), shown, at)


def _warning(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    """What could not be known at the submit. A later attempt may find it out again."""
    message = text(fact, "message")
    if message not in row.warnings and len(row.warnings) < MAX_WARNINGS:
        jobs.change(tx, row.id, warnings=[*row.warnings, message])


def _worker(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    values = fields(
        fact, texts=("group", "node", "state"), wholes=("pid", "rank", "joined_step"), numbers=("share",)
    )
    if values.get("state") is None:
        values.pop("state", None)
    training.put_worker(tx, row.id, attempt.number, worker_id(fact, "id"), values)


def _generation(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    known = {name: value for name, value in fact.items() if value is not None}
    values = fields(known, texts=("cause",), wholes=("step",), numbers=("pause_ms",), lists=("workers",))
    values["formed_at"] = seconds(fact.get("formed_at"), at)
    training.put_generation(tx, row.id, attempt.number, whole(fact, "generation"), values)


def _checkpoint(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    known = {name: value for name, value in fact.items() if value is not None}
    values = fields(
        known,
        texts=("state", "params_digest", "state_digest"),
        wholes=("bytes",),
        numbers=("epoch",),
        lists=("files",),
        tables=("metrics",),
    )
    values |= {"attempt": attempt.number, "created_at": seconds(fact.get("created_at"), at)}
    training.put_checkpoint(tx, row.id, whole(fact, "step"), values)


def _checkpoint_done(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    """The driver acknowledges requests for a checkpoint, up to a number."""
    number, step = whole(fact, "number"), whole(fact, "step")
    if row.checkpoint_done < number <= row.checkpoint_no:
        jobs.change(tx, row.id, checkpoint_done=number)
        data = {"number": number, "step": step, "attempt": attempt.number}
        feed.add_event(tx, row.id, "checkpoint.done", f"Request {number}: step {step} is saved", data, at)


def _progress(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    if attempt.outcome is not None:
        return  # the attempt is over: what it says about itself as running is old
    counted = ("step", "total_steps", "steps_skipped", "workers_replaced", "workers_active")
    known = {name: value for name, value in fact.items() if value is not None}
    if isinstance(total := known.get("total_steps"), int) and total > MAX_INT:
        known["total_steps"] = MAX_INT  # who trains "for ever" names a number of epochs to match
    values = fields(known, wholes=counted, numbers=("epoch", "samples_per_s"))
    values |= {**_holdings(row, known), **_speed(row, known)}
    values["eta_s"] = finite(fact["eta_s"]) if fact.get("eta_s") is not None else None
    jobs.change(tx, row.id, **values)
    if fact.get("status") == "running":
        if move := advance(row.status, Signal.RUNNING):
            row = jobs.move(tx, row, move.status, move.reason, None, "service", at)
        _explain(tx, row, fact, at)


def _holdings(row: JobRow, known: Fact) -> Mapping[str, int]:
    """What the driver still has, once it follows the newest target: from then on no more is taken."""
    if "workers_held" not in known:  # a driver of a version that does not say
        active = known.get("workers_active")
        followed = isinstance(active, int) and active <= row.workers_target
        held = 0
    else:
        followed, held = whole(known, "workers_target") == row.workers_target, whole(known, "workers_held")
    spares = int(row.spec["workers"].get("spares", 0))
    return {"workers_held": max(held, row.workers_target + spares)} if followed else {}


def _speed(row: JobRow, known: Fact) -> Mapping[str, Any]:
    """How fast it is with so many workers, for the scheduler."""
    if not {"samples_per_s", "workers_active", "step"} <= known.keys():
        return {}
    workers, step = whole(known, "workers_active"), whole(known, "step")
    seen = observe(row.curve, workers, step, finite(known["samples_per_s"]) or 0.0)
    return {"curve": seen} if seen is not row.curve else {}


def _explain(tx: Tx, row: JobRow, fact: Fact, at: float) -> None:
    """A running job that waits for workers says so; that is a reason, not another status."""
    waits = fact.get("reason") == Reason.WAITING_FOR_WORKERS
    reason = Reason.WAITING_FOR_WORKERS if waits else Reason.TRAINING
    if row.status is Status.RUNNING and row.reason != reason:
        message = "Too few workers are left: training waits for more" if waits else None
        jobs.change(tx, row.id, reason=reason, message=message)
        data = {"reason": reason.value}
        feed.add_event(
            tx, row.id, "job.reason", message or "Enough workers are there: training goes on", data, at
        )


def _log(tx: Tx, row: JobRow, attempt: AttemptRow, fact: Fact, at: float) -> None:
    size = whole(fact, "bytes")
    if size > 0:
        worker = worker_id(fact, "worker")
        feed.add_segment(tx, row.id, attempt.number, worker, whole(fact, "offset"), size, at)


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
    shown = None if message is None else clean(message)[-MAX_MESSAGE:]  # an error stands at a traceback's end
    return End(fact["outcome"], whole(fact, "step", 0), by, shown, receipts.read(fact.get("receipt")))


WRITERS: dict[str, Callable[[Tx, JobRow, AttemptRow, Fact, float], None]] = {
    "event": _event,
    "warning": _warning,
    "worker": _worker,
    "generation": _generation,
    "checkpoint": _checkpoint,
    "checkpoint_done": _checkpoint_done,
    "progress": _progress,
    "log": _log,
    "outcome": _outcome,
}
# in more than the position that it has come to
CHANGES_THE_JOB = (_warning, _checkpoint_done, _progress, _outcome)

"""The end of an attempt, and what it means to the job. An attempt settles once: the first outcome counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from elastrain.service import receipts
from elastrain.service.jobs import Desired, Reason, Signal, Status, advance, attempt_signal
from elastrain.service.store import Tx, attempts, feed, jobs, training
from elastrain.service.store.rows import AttemptRow, JobRow

# how long until the next attempt, by how many were lost without progress: the first goes on at once
BACKOFF_S = (0.0, 2.0, 4.0, 8.0, 16.0, 30.0)
# an attempt that gave up by itself is not repeated at once: for want of workers it would do so for ever
UNASKED_BACKOFF_S = 10.0


@dataclass(frozen=True)
class End:
    """How an attempt ended. outcome: what its driver recorded, or None if it left nothing behind."""

    outcome: str | None
    step: int | None = None
    failed_by: str | None = None
    message: str | None = None
    receipt: dict[str, Any] | None = None  # what its driver says of the end of its processes
    blameless: bool = False  # nothing in it is to blame: it uses up no retry
    unproven: bool = False  # its cluster is gone, and what became of its processes cannot be known


def settle(tx: Tx, row: JobRow, attempt: AttemptRow, end: End, at: float) -> JobRow:
    """Record the end of the job's current attempt and move the job. `row` is locked; returns the new row."""
    if attempt.outcome is not None:
        return row
    outcome = end.outcome or "lost"
    attempts.change(
        tx,
        row.id,
        attempt.number,
        outcome=outcome,
        outcome_at=at,
        outcome_step=end.step,
        failed_by=end.failed_by,
        message=end.message,
        receipt=_vouched(tx, row, attempt, end),
    )
    training.end_workers(tx, row.id, attempt.number)
    data = {"attempt": attempt.number, "outcome": outcome, "step": end.step, "failed_by": end.failed_by}
    feed.add_event(tx, row.id, "attempt.ended", _said(attempt.number, outcome, end.message), data, at)
    jobs.change(tx, row.id, workers_active=0)
    signal = attempt_signal(row.status, row.desired, end.outcome, end.failed_by)
    if row.status is Status.CANCELLING and signal not in (Signal.SUCCEEDED, Signal.FAILED):
        return row  # cancelled is written once Ray says that the driver is gone, see reconciler.py
    if signal is Signal.LOST:
        return _recover(tx, row, end, at)
    return _move(tx, row, signal, end, at)


def _recover(tx: Tx, row: JobRow, end: End, at: float) -> JobRow:
    """Another attempt if the budget allows; a new checkpoint since the last one refills it."""
    if end.blameless:
        return _again(tx, row, end, at, {"next_attempt_at": at})
    newest = training.newest_saved_step(tx, row.id)
    used = (0 if newest > row.retries_mark else row.retries_used) + 1
    if used > int(row.spec["retries"]):
        said = end.message or "The attempt was lost"
        message = (
            f"{said}\n(no retry is left: retries is {row.spec['retries']}, and no checkpoint was made since)"
        )
        return _move(tx, row, Signal.EXHAUSTED, End("failed", end.step, end.failed_by, message), at)
    wait_s = BACKOFF_S[min(used - 1, len(BACKOFF_S) - 1)]
    budget = {"retries_used": used, "retries_mark": newest, "next_attempt_at": at + wait_s}
    return _again(tx, row, end, at, budget)


def _again(tx: Tx, row: JobRow, end: End, at: float, budget: dict[str, Any]) -> JobRow:
    move = advance(row.status, Signal.LOST)
    if move is None:
        return row
    return jobs.move(tx, row, move.status, move.reason, end.message, "service", at, **budget)


def _vouched(tx: Tx, row: JobRow, attempt: AttemptRow, end: End) -> dict[str, Any] | None:
    """The receipt, if the driver's word settles it; else somebody has to look."""
    if end.receipt is None or receipts.open_points(end.receipt):
        return None
    return receipts.searched(end.receipt, training.nodes_of(tx, row.id, attempt.number))


def _move(tx: Tx, row: JobRow, signal: Signal, end: End, at: float) -> JobRow:
    move = advance(row.status, signal)
    if move is None:
        return row
    reason, values = move.reason, dict[str, object]()
    if row.reason == Reason.RESUME_REQUESTED and signal is Signal.PREEMPTED:
        reason, values["queued_at"] = Reason.RESUMED, at
    if signal is Signal.PREEMPTED and row.desired is Desired.RUN:  # nobody asked: it gave up, or was told to
        reason = Reason.TOO_FEW_WORKERS if row.reason == Reason.WAITING_FOR_WORKERS else Reason.PREEMPTED
        values["next_attempt_at"] = at + UNASKED_BACKOFF_S
    if move.status is Status.CANCELLED and end.unproven:
        reason = Reason.CLUSTER_LOST
    if move.status is Status.FAILED:
        values["failed_by"] = end.failed_by or "infrastructure"
    if move.status is Status.SUCCEEDED and end.step is not None:
        values["step"] = end.step
    if move.status in (Status.QUEUED, Status.PAUSED):
        values |= {"desired": Desired.RUN if move.status is Status.QUEUED else Desired.PAUSE}
        values |= {"desired_version": row.desired_version + 1, "desired_at": at}
    if move.overtaken and row.reason not in (Reason.TIMEOUT, Reason.RESUME_REQUESTED):
        asked = "cancel" if row.status is Status.CANCELLING else row.desired.value
        data = {"asked": asked, "outcome": end.outcome}
        message = f"The request to {asked} came too late: the attempt had {end.outcome}"
        feed.add_event(tx, row.id, "job.request_overtaken", message, data, at)
    return jobs.move(tx, row, move.status, reason, end.message, "service", at, **values)


def without_attempt(tx: Tx, row: JobRow, at: float, unproven: bool = False) -> JobRow:
    """A job that was asked to stop while it had no driver goes where it was going.

    unproven: whether everything of it is gone cannot be known, since its cluster is.
    """
    end = End(None, unproven=unproven)
    if row.status is Status.CANCELLING and row.reason == Reason.TIMEOUT:
        signal, end = Signal.TIMED_OUT, End("failed", None, "user", row.message)
    elif row.status is Status.CANCELLING:
        signal = Signal.CANCELLED
    else:
        signal = Signal.PAUSED if row.desired is Desired.PAUSE else Signal.PREEMPTED
    return _move(tx, row, signal, end, at)


def _said(number: int, outcome: str, message: str | None) -> str:
    first = (message or "").strip().splitlines()
    return f"Attempt {number} ended: {outcome}" + (f" ({first[-1][:300]})" if first else "")

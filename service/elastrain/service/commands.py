"""What a user, or `up`, asks of a job. Only wishes are written here: reconciler and driver act on them.

A request that was made before gets the same answer again; one that is not possible now is a Conflict that
says what is.
"""

from __future__ import annotations

from typing import Any

from elastrain.service.auth import Actor
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.errors import Conflict
from elastrain.service.finding import find, lock
from elastrain.service.idempotency import Once
from elastrain.service.jobs import (
    ASKS,
    ENDED,
    Desired,
    Move,
    Reason,
    Signal,
    Status,
    advance,
    allowed_actions,
)
from elastrain.service.store import Store, Tx, attempts, feed, jobs, training
from elastrain.service.store.rows import JobRow
from elastrain.service.views import JobViews

Json = dict[str, Any]

# request -> what a job cannot be, and what is then wanted of the driver
PARTICIPLES = {
    "cancel": "cancelled",
    "pause": "paused",
    "resume": "resumed",
    "retry": "retried",
    "checkpoint": "saved",
}
WANTED = {"cancel": Desired.CANCEL, "pause": Desired.PAUSE, "resume": Desired.RUN, "retry": Desired.RUN}


class Commands:
    def __init__(self, store: Store, once: Once, job_views: JobViews, clock: Clock, changes: Changes) -> None:
        self._store = store
        self._once = once
        self._views = job_views
        self._clock = clock
        self._changes = changes

    def ask(self, action: str, job_id: str, actor: Actor, key: str | None = None) -> Json:
        """The job after the request: cancel, pause, resume, retry or checkpoint. Raises Conflict."""
        with self._store.read() as tx:
            id = find(tx, job_id, actor).id

        def act(tx: Tx) -> tuple[str, Json]:
            row = lock(tx, id, actor, f"{action} jobs")
            ask_one(tx, row, action, actor.name, self._clock.now())
            return id, self._views.one(tx, jobs.get(tx, id))

        job, _ = self._once.do(actor, f"POST /jobs/{id}/{action}", key, {}, act)
        self._changes.tell(id, decide=True)
        return job

    def force_cancel(self, job_id: str, actor: Actor, key: str | None = None) -> Json:
        """As cancel, and its attempts count as gone, though nobody has seen that. For admins."""
        with self._store.read() as tx:
            id = find(tx, job_id, actor).id

        def act(tx: Tx) -> tuple[str, Json]:
            row = lock(tx, id, actor, "cancel jobs")
            actor.must("admin", "force a cancel")
            ask_one(tx, row, "cancel", actor.name, self._clock.now())
            for attempt in attempts.of_job(tx, id):
                if attempt.state != "ended" and attempt.forced_by is None:
                    attempts.change(tx, id, attempt.number, forced_by=actor.name)
            return id, self._views.one(tx, jobs.get(tx, id))

        job, _ = self._once.do(actor, f"POST /jobs/{id}/cancel", key, {"force": True}, act)
        self._changes.tell(id, decide=True)
        return job

    def preempt_all(self, message: str) -> list[str]:
        asked = []
        with self._store.write() as tx:
            for id in sorted(row.id for row in jobs.in_status(tx, [Status.STARTING, Status.RUNNING])):
                row = jobs.lock(tx, id)
                if move := advance(row.status, Signal.ASK_PREEMPT):
                    want(tx, row, move, Desired.PREEMPT, message, "service", self._clock.now())
                    asked.append(id)
        for id in asked:
            self._changes.tell(id, decide=True)
        return asked


def ask_one(tx: Tx, row: JobRow, action: str, actor: str, at: float) -> None:
    """Write the request down, unless it was made before. `row` is locked. Raises Conflict."""
    if _asked_before(tx, row, action):
        return
    if action not in allowed_actions(row.status, row.desired):
        raise not_now(row, PARTICIPLES[action])
    message = f"{actor} asked to {action}"
    if action == "checkpoint":
        _number(tx, row, message, actor, at)
        return
    move = advance(row.status, ASKS[action])
    assert move is not None, (row.status, action)
    values: dict[str, Any] = {}
    if move.status is Status.QUEUED:  # by the user's wish of this moment: its age counts from here
        values = {"queued_at": at, "next_attempt_at": 0.0}
    if action == "retry":
        newest = training.newest_saved_step(tx, row.id)
        values |= {"finished_at": None, "failed_by": None, "active_s": 0.0}
        values |= {"retries_used": 0, "retries_mark": newest}
    # a driver that was told to pause goes on doing so, and the job to the queue
    desired = Desired.PREEMPT if move.reason is Reason.RESUME_REQUESTED else WANTED[action]
    want(tx, row, move, desired, message, actor, at, **values)


def want(
    tx: Tx, row: JobRow, move: Move, desired: Desired, message: str, actor: str, at: float, **values: Any
) -> JobRow:
    """Write down what is wanted now, so that the driver hears of it."""
    values |= {"desired": desired, "desired_version": row.desired_version + 1, "desired_at": at}
    return jobs.move(tx, row, move.status, move.reason, message, actor, at, **values)


def not_now(row: JobRow, participle: str) -> Conflict:
    actions = allowed_actions(row.status, row.desired)
    return Conflict(
        f"Job {row.id} is {row.status} and cannot be {participle}",
        hint=f"Possible now: {', '.join(actions)}.",
        extra={"allowed_actions": actions, "status": row.status.value},
    )


def _asked_before(tx: Tx, row: JobRow, action: str) -> bool:
    """Whether the job is where this request once brought it, or is on the way there."""
    match action:
        case "cancel":
            return row.status in (Status.CANCELLING, Status.CANCELLED)
        case "pause":
            pausing = row.status is Status.PAUSING and row.desired is Desired.PAUSE
            return pausing or row.status is Status.PAUSED
        case "resume":
            return _since_it_rested(tx, row, Reason.RESUMED, Reason.RESUME_REQUESTED)
        case "retry":
            return _since_it_rested(tx, row, Reason.RETRIED)
    return False


def _since_it_rested(tx: Tx, row: JobRow, *reasons: Reason) -> bool:
    """Whether it was brought back for one of these reasons, and has neither ended nor been paused since."""
    for passed in reversed(jobs.history(tx, [row.id])[row.id]):
        if passed.reason in reasons:
            return True
        if passed.status in (*ENDED, Status.PAUSED) or passed.reason == Reason.PAUSE_REQUESTED:
            return False
    return False


def _number(tx: Tx, row: JobRow, message: str, actor: str, at: float) -> None:
    """A request for a checkpoint has a number, by which the driver acknowledges it."""
    number = row.checkpoint_no + 1
    jobs.change(tx, row.id, checkpoint_no=number, desired_version=row.desired_version + 1)
    data = {"number": number, "actor": actor}
    feed.add_event(tx, row.id, "checkpoint.requested", f"{message} (request {number})", data, at)

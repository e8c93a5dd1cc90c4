"""What to do next about one job: pure, from what is wanted, what is recorded and what Ray shows.

The reconciler asks once per round and acts on the answer. Nothing here remembers anything, so a service that
was killed goes on where the next question finds the job.

    attempt.state   submitting -> submitted -> claimed -> sweeping -> ended
                    sweeping: Ray says that its driver is gone, and what it has left is searched for
                    ended: it is, and the receipt says what is known of its processes
    attempt.outcome what the driver recorded, or "lost"; set once, before or after Ray notices the end
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from elastrain.service.jobs import Desired, Status
from elastrain.service.store.rows import AttemptRow, JobRow

# Ray is asked again to stop a driver that is still there
STOP_AGAIN_S = 10.0
# a driver that recorded its outcome may stay this long to post what is left
LINGER_S = 120.0
# a search for what an attempt has left is begun anew if it takes longer
SWEEP_S = 60.0


class Action(StrEnum):
    NOTHING = "nothing"
    OPEN = "open"  # write down the next attempt; Ray hears of it afterwards
    SUBMIT = "submit"  # hand the attempt's driver to Ray
    MARK_SUBMITTED = "mark_submitted"  # Ray has it, though nobody wrote that down
    READ_OUTCOME = "read_outcome"  # look into object storage for what the driver left; not there: not yet
    CLOSE = "close"  # Ray says that the driver is gone: its outcome counts, or else it is lost
    CLUSTER_LOST = "cluster_lost"  # as CLOSE, and there is nothing left that could be searched
    ABANDON = "abandon"  # an admin takes it as gone
    SWEEP = "sweep"  # have Ray search for what the attempt has left
    COLLECT = "collect"  # take what the search has found
    STOP = "stop"  # ask Ray to end the driver
    FINISH = "finish"  # no driver is left: the job goes where it was going


@dataclass(frozen=True)
class Decision:
    action: Action
    why: str


@dataclass(frozen=True)
class Seen:
    """What Ray shows of one driver, or of one search. unknown: Ray is away, or its answer is older than the
    attempt. cluster_lost: the Ray that had it is no more."""

    state: Literal["unknown", "absent", "alive", "ended", "cluster_lost"]
    message: str = ""


@dataclass(frozen=True)
class Limits:
    """began: when this service process started; a driver is not blamed for the time before that."""

    cancel_grace_s: float
    pause_grace_s: float
    claim_timeout_s: float
    began: float = 0.0


def decide(job: JobRow, attempt: AttemptRow | None, seen: Seen, now: float, limits: Limits) -> Decision:
    """attempt: the job's attempt that is not over, None if there is none."""
    if attempt is None:
        return _without_driver(job, seen, now)
    if attempt.forced_by is not None:
        return Decision(Action.ABANDON, f"{attempt.forced_by} takes it as gone")
    if seen.state == "unknown":
        if attempt.outcome is None and attempt.state == "claimed":
            return Decision(Action.READ_OUTCOME, "Ray cannot be reached; perhaps the driver has finished")
        return Decision(Action.NOTHING, "Ray cannot be reached")
    if attempt.state == "submitting":
        return _submitting(job, attempt, seen)
    if seen.state == "cluster_lost":
        return Decision(Action.CLUSTER_LOST, seen.message)
    if attempt.state == "sweeping":
        return _sweeping(attempt, seen, now)
    if seen.state in ("ended", "absent"):
        return Decision(Action.CLOSE, seen.message or "Ray no longer knows the driver")
    return _with_driver(job, attempt, now, limits)


def open_attempt(row: JobRow, known: list[AttemptRow], number: int | None) -> AttemptRow | None:
    """The attempt to look at; unless it is named, one that the job has to wait for."""
    waits = [a for a in known if a.has_driver or (row.status is Status.CANCELLING and a.state != "ended")]
    named = [a for a in known if a.number == number and a.state != "ended"]
    return next(iter(waits if number is None else named), None)


def _without_driver(job: JobRow, seen: Seen, now: float) -> Decision:
    if job.status in (Status.CANCELLING, Status.PAUSING):
        return Decision(Action.FINISH, "no driver is left")
    if job.status is Status.STARTING:
        if seen.state == "unknown":
            return Decision(Action.NOTHING, "Ray cannot be reached")
        if now < job.next_attempt_at:
            return Decision(Action.NOTHING, "waiting before the next attempt")
        return Decision(Action.OPEN, "workers are granted")
    return Decision(Action.NOTHING, "")


def _submitting(job: JobRow, attempt: AttemptRow, seen: Seen) -> Decision:
    if seen.state not in ("absent", "cluster_lost"):
        return Decision(Action.MARK_SUBMITTED, "Ray has the driver already")
    if job.attempt == attempt.number and job.status is Status.STARTING and job.desired is Desired.RUN:
        return Decision(Action.SUBMIT, "the attempt is open")
    return Decision(Action.CLOSE, "the driver was never started")


def _sweeping(attempt: AttemptRow, seen: Seen, now: float) -> Decision:
    """The driver is gone; Ray searches its nodes for what it has left."""
    since = attempt.sweep_at or 0.0
    if seen.state == "absent":
        return Decision(Action.SWEEP, "the driver did not vouch for the end of its processes")
    if seen.state == "alive" and now - since <= SWEEP_S:
        return Decision(Action.NOTHING, "the nodes are being searched")
    return Decision(Action.COLLECT, "the search is over")


def _with_driver(job: JobRow, attempt: AttemptRow, now: float, limits: Limits) -> Decision:
    """The driver is there. Should it be?"""
    why = _stop_reason(job, attempt, now, limits)
    if why is None:
        return Decision(Action.NOTHING, "")
    if attempt.stop_asked_at is not None and now - attempt.stop_asked_at < STOP_AGAIN_S:
        return Decision(Action.NOTHING, f"asked to stop: {why}")
    return Decision(Action.STOP, why)


def _stop_reason(job: JobRow, attempt: AttemptRow, now: float, limits: Limits) -> str | None:
    if attempt.number != job.attempt:
        return "a newer attempt has taken over"
    if attempt.outcome is not None:
        overdue = attempt.outcome == "lost" or now - (attempt.outcome_at or now) > LINGER_S
        return f"the attempt is over ({attempt.outcome})" if overdue else None
    if attempt.claimed_at is None:
        if job.desired is not Desired.RUN:
            return f"the job is to {job.desired}, and the driver has started nothing yet"
        if now - max(attempt.submitted_at or 0.0, limits.began) > limits.claim_timeout_s:
            return f"the driver did not call the service within {limits.claim_timeout_s:g} s"
        return None
    if job.desired is Desired.RUN:
        return None
    grace_s = limits.cancel_grace_s if job.desired is Desired.CANCEL else limits.pause_grace_s
    if now - max(job.desired_at, limits.began) > grace_s:
        return f"the driver did not end within {grace_s:g} s of the request to {job.desired}"
    return None

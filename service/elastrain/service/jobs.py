"""A job's life, as one table.

    queued ----START----> starting ----RUNNING----> running
      ^                    |    ^                    |   |
      |                    |    +-------LOST---------+   |
      |                    +---------+   +---------------+
      |                              v   v
      |                     SUCCEEDED --------------------> succeeded
      |                     FAILED, EXHAUSTED ------------> failed ----+
      |                     ASK_PAUSE, ASK_PREEMPT -------> pausing --PAUSED--> paused
      +---------------------------PREEMPTED-----------------+   |      |          |
      |                     ASK_CANCEL, OVERTIME -------> cancelling --CANCELLED--> cancelled
      |                                                        +-----TIMED_OUT----> failed
      +---ASK_RESUME (from paused), ASK_RETRY (from failed, cancelled)------------+

    ASK_CANCEL leads from queued and paused straight to cancelled, and from pausing to cancelling; ASK_PAUSE
    from queued straight to paused. Pausing and cancelling end in succeeded or failed if that was recorded
    first. ASK_RESUME while pausing takes the pause back: the job goes to the queue once it is saved.

`status` is what is observed, `desired` what is wanted; only signals move the status. The first recorded
outcome wins: a request that comes too late leaves it, with an event `job.request_overtaken`. Cancel beats
pause. End states never change, but for a retry. Pure: no clock, no store.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class Status(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


ENDED = frozenset({Status.CANCELLED, Status.SUCCEEDED, Status.FAILED})
# the job has a driver, or is between two of them
ACTIVE = frozenset({Status.STARTING, Status.RUNNING, Status.PAUSING, Status.CANCELLING})


class Desired(StrEnum):
    """What the driver is told."""

    RUN = "run"
    PAUSE = "pause"
    PREEMPT = "preempt"
    CANCEL = "cancel"


class Reason(StrEnum):
    """Why a job is in its status: few states, many reasons."""

    SUBMITTED = "submitted"
    RAY_UNREACHABLE = "ray_unreachable"
    NO_CAPACITY = "no_capacity"
    BEHIND_OTHER_JOBS = "behind_other_jobs"
    DOES_NOT_FIT = "does_not_fit"
    OVER_QUOTA = "over_quota"
    PREEMPTED = "preempted"
    TOO_FEW_WORKERS = "too_few_workers"
    WORKERS_GRANTED = "workers_granted"
    WAITING_FOR_WORKERS = "waiting_for_workers"
    RECOVERING = "recovering"
    TRAINING = "training"
    PAUSE_REQUESTED = "pause_requested"
    PREEMPT_REQUESTED = "preempt_requested"
    RESUME_REQUESTED = "resume_requested"
    RESUMED = "resumed"
    RETRIED = "retried"
    CANCEL_REQUESTED = "cancel_requested"
    USER_REQUEST = "user_request"
    COMPLETED = "completed"
    USER_ERROR = "user_error"
    RETRIES_EXHAUSTED = "retries_exhausted"
    TIMEOUT = "timeout"
    CLUSTER_LOST = "cluster_lost"


# reasons that a queued job can have, each with a sentence in `message`
WAITING = frozenset(
    {
        Reason.SUBMITTED,
        Reason.RAY_UNREACHABLE,
        Reason.NO_CAPACITY,
        Reason.BEHIND_OTHER_JOBS,
        Reason.DOES_NOT_FIT,
        Reason.OVER_QUOTA,
        Reason.PREEMPTED,
        Reason.RESUMED,
        Reason.RETRIED,
        Reason.TOO_FEW_WORKERS,
    }
)


class Signal(StrEnum):
    """What can happen to a job."""

    START = "start"  # the scheduler has workers for it
    RUNNING = "running"  # the driver reports that the loop runs
    ASK_CANCEL = "ask_cancel"
    ASK_PAUSE = "ask_pause"
    ASK_PREEMPT = "ask_preempt"
    ASK_RESUME = "ask_resume"
    ASK_RETRY = "ask_retry"
    OVERTIME = "overtime"  # it has had its `timeout_s`
    SUCCEEDED = "succeeded"  # from here on: how an attempt ended
    FAILED = "failed"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"  # like CANCELLED, but that nobody asked for it
    LOST = "lost"  # it ended without an outcome, or by fault of the infrastructure; a retry is left
    EXHAUSTED = "exhausted"  # the same, and none is left


@dataclass(frozen=True)
class Move:
    """Where a signal leads. `overtaken`: a request of the user came too late to matter."""

    status: Status
    reason: Reason
    overtaken: bool = False


S, R, G = Status, Reason, Signal
# what a user may ask for, and the signal that it is
ASKS = {"cancel": G.ASK_CANCEL, "pause": G.ASK_PAUSE, "resume": G.ASK_RESUME, "retry": G.ASK_RETRY}
_FINISHED = {
    G.SUCCEEDED: Move(S.SUCCEEDED, R.COMPLETED),
    G.FAILED: Move(S.FAILED, R.USER_ERROR),
    G.EXHAUSTED: Move(S.FAILED, R.RETRIES_EXHAUSTED),
}
_NOTHING: dict[Signal, Move | None] = dict.fromkeys(Signal)
_LIVE: dict[Signal, Move | None] = {
    **_NOTHING,
    **_FINISHED,
    G.ASK_CANCEL: Move(S.CANCELLING, R.CANCEL_REQUESTED),
    G.OVERTIME: Move(S.CANCELLING, R.TIMEOUT),
    G.ASK_PAUSE: Move(S.PAUSING, R.PAUSE_REQUESTED),
    G.ASK_PREEMPT: Move(S.PAUSING, R.PREEMPT_REQUESTED),
    G.PAUSED: Move(S.PAUSED, R.USER_REQUEST),
    G.PREEMPTED: Move(S.QUEUED, R.PREEMPTED),
    G.CANCELLED: Move(S.CANCELLED, R.USER_REQUEST),
    G.LOST: Move(S.STARTING, R.RECOVERING),
}
_OVERTAKEN = {signal: Move(m.status, m.reason, overtaken=True) for signal, m in _FINISHED.items()}
_TO_CANCELLED = Move(S.CANCELLED, R.USER_REQUEST)
_AGAIN = {**_NOTHING, G.ASK_RETRY: Move(S.QUEUED, R.RETRIED)}

# every pair of status and signal; None: nothing changes
TABLE: dict[Status, dict[Signal, Move | None]] = {
    S.QUEUED: {
        **_NOTHING,
        G.START: Move(S.STARTING, R.WORKERS_GRANTED),
        G.ASK_CANCEL: _TO_CANCELLED,
        G.ASK_PAUSE: Move(S.PAUSED, R.USER_REQUEST),
    },
    S.STARTING: {**_LIVE, G.RUNNING: Move(S.RUNNING, R.TRAINING)},
    S.RUNNING: _LIVE,
    S.PAUSING: {
        **_NOTHING,
        **_OVERTAKEN,
        G.ASK_CANCEL: Move(S.CANCELLING, R.CANCEL_REQUESTED),
        G.ASK_PAUSE: Move(S.PAUSING, R.PAUSE_REQUESTED),  # it was only to be preempted
        G.ASK_RESUME: Move(S.PAUSING, R.RESUME_REQUESTED),
        G.PAUSED: Move(S.PAUSED, R.USER_REQUEST),
        G.PREEMPTED: Move(S.QUEUED, R.PREEMPTED),
        G.CANCELLED: _TO_CANCELLED,
    },
    S.PAUSED: {**_NOTHING, G.ASK_CANCEL: _TO_CANCELLED, G.ASK_RESUME: Move(S.QUEUED, R.RESUMED)},
    S.CANCELLING: {
        **_NOTHING,
        G.SUCCEEDED: _OVERTAKEN[G.SUCCEEDED],
        G.FAILED: _OVERTAKEN[G.FAILED],
        # whatever else ends the attempt now, the wish to cancel is what is left of it
        **dict.fromkeys((G.PAUSED, G.PREEMPTED, G.CANCELLED, G.LOST, G.EXHAUSTED), _TO_CANCELLED),
        G.TIMED_OUT: Move(S.FAILED, R.TIMEOUT),
    },
    S.CANCELLED: _AGAIN,
    S.SUCCEEDED: _NOTHING,
    S.FAILED: _AGAIN,
}


def advance(status: Status, signal: Signal) -> Move | None:
    """Where the signal leads from this status, or None if it changes nothing."""
    return TABLE[status][signal]


def allowed_actions(status: Status, desired: Desired = Desired.RUN) -> list[str]:
    """What a user can ask for now, as names of the API's actions; `scale` is a PATCH."""
    return list(_allowed(status, desired))


@cache
def _allowed(status: Status, desired: Desired) -> tuple[str, ...]:
    able = {action: advance(status, signal) is not None for action, signal in ASKS.items()}
    if status is Status.PAUSING:  # a pause can be taken back, and a preemption be made a pause
        able |= {"pause": desired is not Desired.PAUSE, "resume": desired is Desired.PAUSE}
    able |= {
        "checkpoint": status in (Status.STARTING, Status.RUNNING),
        "scale": status not in ENDED and status is not Status.CANCELLING,
        "clone": True,
        "delete": status in ENDED,
    }
    return tuple(action for action in able if able[action])


def attempt_signal(status: Status, desired: Desired, outcome: str | None, by: str | None) -> Signal:
    """What the end of an attempt means to its job.

    outcome, by: what the driver recorded, `by` being `failed_by`; None if it left nothing. Anything but an
    error of the user that cost the attempt (a lost driver, the infrastructure, a stop behind our back) is
    LOST. In `pausing` there is nothing to retry: the job goes where it was going, from its last checkpoint,
    and where that is may have changed since the driver heard of it.
    """
    if outcome == "succeeded" or (outcome == "failed" and by == "user"):
        return Signal(outcome)
    if outcome == "cancelled" and desired is Desired.CANCEL:
        return Signal.CANCELLED
    if status is Status.PAUSING:
        return Signal.PAUSED if desired is Desired.PAUSE else Signal.PREEMPTED
    return Signal.PREEMPTED if outcome in ("paused", "preempted") else Signal.LOST

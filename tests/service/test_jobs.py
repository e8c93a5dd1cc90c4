"""The state machine: every pair is there, end states never change, cancel beats pause."""

import itertools

import pytest

from elastrain.service.jobs import (
    ENDED,
    TABLE,
    Desired,
    Move,
    Reason,
    Signal,
    Status,
    advance,
    allowed_actions,
    attempt_signal,
)


def test_every_pair_of_status_and_signal_has_an_answer() -> None:
    assert set(TABLE) == set(Status)
    assert all(set(row) == set(Signal) for row in TABLE.values())


@pytest.mark.parametrize("status", sorted(ENDED))
def test_an_end_state_never_changes_but_for_a_retry(status: Status) -> None:
    moves = {signal: move for signal in Signal if (move := advance(status, signal))}
    again = {Signal.ASK_RETRY: Move(Status.QUEUED, Reason.RETRIED)}
    assert moves == ({} if status is Status.SUCCEEDED else again)


def test_cancel_beats_pause_and_is_never_undone() -> None:
    pausing = advance(Status.PAUSING, Signal.ASK_CANCEL)
    assert pausing is not None and pausing.status is Status.CANCELLING
    for signal in Signal:
        move = advance(Status.CANCELLING, signal)
        assert move is None or move.status in ENDED


@pytest.mark.parametrize(
    ("status", "desired", "actions"),
    [
        ("queued", "run", "cancel pause scale clone"),
        ("starting", "run", "cancel pause checkpoint scale clone"),
        ("running", "run", "cancel pause checkpoint scale clone"),
        ("pausing", "pause", "cancel resume scale clone"),
        ("pausing", "preempt", "cancel pause scale clone"),
        ("paused", "pause", "cancel resume scale clone"),
        ("cancelling", "cancel", "clone"),
        ("cancelled", "cancel", "retry clone delete"),
        ("failed", "run", "retry clone delete"),
        ("succeeded", "run", "clone delete"),
    ],
)
def test_what_can_be_asked_of_a_job_depends_on_where_it_is_and_where_it_is_going(
    status: str, desired: str, actions: str
) -> None:
    assert allowed_actions(Status(status), Desired(desired)) == actions.split()


def test_an_outcome_that_was_recorded_first_wins_over_a_request() -> None:
    for status, signal in itertools.product(
        (Status.PAUSING, Status.CANCELLING), (Signal.SUCCEEDED, Signal.FAILED)
    ):
        move = advance(status, signal)
        assert move is not None and move.status.value == signal.value and move.overtaken


def test_a_queued_job_that_is_cancelled_needs_nobody_else() -> None:
    move = advance(Status.QUEUED, Signal.ASK_CANCEL)
    assert move is not None and (move.status, move.reason) == (Status.CANCELLED, Reason.USER_REQUEST)


def test_only_the_users_own_error_fails_a_job_at_once() -> None:
    running = Status.RUNNING
    assert attempt_signal(running, Desired.RUN, "failed", "user") is Signal.FAILED
    for outcome, by in (
        (None, None),
        ("failed", "infrastructure"),
        ("failed", "service"),
        ("cancelled", None),
    ):
        assert attempt_signal(running, Desired.RUN, outcome, by) is Signal.LOST


@pytest.mark.parametrize("outcome", [None, "paused", "preempted", "cancelled"])
def test_whatever_ends_a_pausing_attempt_the_job_goes_where_it_was_going(outcome: str | None) -> None:
    assert attempt_signal(Status.PAUSING, Desired.PREEMPT, outcome, None) is Signal.PREEMPTED
    assert attempt_signal(Status.PAUSING, Desired.PAUSE, outcome, None) is Signal.PAUSED

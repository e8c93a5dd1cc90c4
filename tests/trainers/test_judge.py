"""What speaks against going on is asked of what a member holds, so that no death makes anybody forget it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.training.faults import UserFault
from elastrain.trainers.training.judge import Rewound, condemn, doubtful, judge

BAD = Cursor(step=26, updates=25, skipped=1, skipped_in_row=1, proven=24)
RECORD = {"step": 25, "others": [""], "bad": [[3, "w1"]], "workers": ["w0", "w1"]}


def replica(cursor: Cursor, record: Any = RECORD, **fields: Any) -> Any:
    said = {"name": "x", "task": "a:B", "steps": 99, "batch": {"size": 8, "microbatch": 1}, **fields}
    buffers = SimpleNamespace(others=["seen"])
    model = SimpleNamespace(buffers=buffers)
    return SimpleNamespace(cursor=cursor, record=record, spec=parse_spec(said), model=model, step=cursor.step)


def refused(held: Any, last: bool = False) -> str:
    with pytest.raises(UserFault) as caught:
        judge(held, last)
    assert caught.value.fault.phase == "verdict"
    return caught.value.fault.error


def rolls_back(**more: Any) -> dict[str, Any]:
    return {"non_finite": {"policy": "rollback", "max": 0, **more}}


def test_in_an_asynchronous_run_the_step_is_named_that_was_computed_and_not_the_place_where_it_counts() -> (
    None
):
    record = RECORD | {"task": [21, 20], "bad": [[3, "w4"]], "workers": ["w4"]}
    strategy = {"name": "parameter_server", "staleness": None}
    text = refused(replica(BAD, record, strategy=strategy, non_finite={"policy": "fail"}))
    assert "the loss of step 21 is not finite (NaN or infinite) on w4, microbatch 3;" in text


def test_a_step_that_is_not_finite_within_the_budget_is_endured() -> None:
    judge(replica(BAD), False)


def test_a_nan_ends_the_job_where_the_spec_says_so_and_names_rank_and_step() -> None:
    text = refused(replica(BAD, non_finite={"policy": "fail"}))
    assert "step 25" in text and "rank 1 (w1), microbatch 3" in text and "NaN" in text


def test_who_did_not_see_the_record_ends_the_job_all_the_same() -> None:
    assert "step 25" in refused(replica(BAD, record=None, non_finite={"policy": "fail"}))


def test_one_more_than_the_budget_ends_the_job() -> None:
    spent = replace(BAD, skipped_in_row=4)
    assert "4 steps in a row" in refused(replica(spent, non_finite={"max": 3}))


def test_a_run_that_ends_in_nan_has_failed() -> None:
    assert "the last one" in refused(replica(BAD), last=True)


def test_past_the_budget_it_goes_back_to_before_the_first_bad_step_with_a_lower_rate() -> None:
    with pytest.raises(Rewound) as caught:
        judge(replica(BAD, **rolls_back(lr_factor=0.1)), False)
    rewind = caught.value.rewind
    assert (rewind.newest, rewind.number) == (24, 1)
    assert "rollback 1 of 3" in rewind.why and "multiplied by 0.1" in rewind.why


def test_it_goes_back_on_the_last_step_too() -> None:
    with pytest.raises(Rewound):
        judge(replica(BAD, **rolls_back()), True)


def test_after_so_many_rollbacks_the_job_fails() -> None:
    tried = replace(BAD, rollbacks=3)
    assert "rolled back 3 times" in refused(replica(tried, **rolls_back()))


def test_spikes_in_a_row_go_back_only_where_the_spec_says_so() -> None:
    spiking = Cursor(step=30, updates=30, spikes_in_row=4, proven=25, losses=(1.0, 9.0))
    judge(replica(spiking, record=None), False)
    with pytest.raises(Rewound) as caught:
        judge(replica(spiking, record=None, loss_spike={"policy": "rollback", "max": 3}), False)
    assert caught.value.rewind.newest == 25
    judge(replica(spiking, record=None, loss_spike={"policy": "rollback", "max": 4}), False)


def test_parameters_that_are_not_finite_end_the_job_or_lead_back() -> None:
    held = replica(Cursor(step=10, updates=10, proven=9))
    with pytest.raises(UserFault, match=r"after step 10 a, b, c and others holds NaN"):
        condemn(held, ["c", "a", "b", "d", "a"])
    with pytest.raises(Rewound):
        condemn(replica(Cursor(step=10, proven=9), **rolls_back()), ["a"])


def test_a_buffer_that_differs_is_refused_at_the_boundary_after_its_step() -> None:
    record = {**RECORD, "others": ["a", "b"]}
    assert "seen" in refused(replica(replace(BAD, skipped_in_row=0), record))
    judge(replica(replace(BAD, skipped_in_row=0, step=27), record), False)


def test_while_steps_go_wrong_that_may_lead_back_nothing_is_saved() -> None:
    assert not doubtful(replica(BAD)), "what is held is what it was before"
    assert doubtful(replica(BAD, **rolls_back()))
    assert not doubtful(replica(replace(BAD, skipped_in_row=0), **rolls_back()))
    spiking = Cursor(step=30, spikes_in_row=1)
    assert not doubtful(replica(spiking))
    assert doubtful(replica(spiking, loss_spike={"policy": "rollback"}))

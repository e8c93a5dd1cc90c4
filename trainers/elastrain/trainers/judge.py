"""What every member sees alike in a commit record, and must not train on with."""

from __future__ import annotations

from elastrain.trainers.cursor import Verdict
from elastrain.trainers.faults import refuse
from elastrain.trainers.messages import Json
from elastrain.trainers.replica import Replica


def judge(replica: Replica, record: Json, verdict: Verdict) -> None:
    """Raises UserFault, for the members as one: the record says the same to each of them."""
    assert replica.cursor is not None
    if len(record["others"]) > 1:
        names = ", ".join(replica.model.buffers.others)
        refuse(
            f"a buffer that is not a float differs between the microbatches of step {record['step']} "
            f"(one of: {names}). Such a buffer must not depend on the data: make it a float."
        )
    if not verdict.finite:
        policy, in_row = replica.spec.non_finite, replica.cursor.skipped_in_row
        if policy.policy == "fail":
            refuse(f"{_where(record)}; non_finite.policy is fail")
        if in_row > policy.max:
            refuse(f"{_where(record)}; {in_row} steps in a row were skipped, non_finite.max is {policy.max}")


def _where(record: Json) -> str:
    """Who computed what is not finite."""
    bad = [f"rank {record['workers'].index(w)} ({w}), microbatch {j}" for j, w in record["bad"]]
    if not bad:
        return f"the gradient of step {record['step']} is not finite (NaN or infinite)"
    return f"the loss of step {record['step']} is not finite (NaN or infinite) on {'; '.join(bad)}"

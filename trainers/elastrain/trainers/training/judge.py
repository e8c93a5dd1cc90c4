"""What speaks against going on, asked at every boundary: a record that no one may train on with, parameters
that are not finite, too many steps without a use.

It is asked of what a member holds, not of the step that it has just made: a death between the commit and the
boundary must not make the others forget to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.membership.reports import Rewind
from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.training.faults import refuse
from elastrain.trainers.training.replica import Replica


class Rewound(Exception):
    """Training went wrong, and is to go on from a checkpoint made before it did, with a lower rate."""

    def __init__(self, rewind: Rewind) -> None:
        super().__init__(rewind.why)
        self.rewind = rewind


def judge(replica: Replica, last: bool) -> None:
    """last: nothing comes after this boundary. Raises UserFault or Rewound, for the members as one: cursor
    and record say the same to each of them. A joiner, who has no record yet, goes by the cursor."""
    cursor, record, policy = replica.cursor, replica.record, replica.spec.non_finite
    assert cursor is not None
    if record is None or record["step"] != cursor.step - 1:
        record = None
    elif len(record["others"]) > 1:
        names = ", ".join(replica.model.buffers.others)
        refuse(
            f"a buffer that is not a float differs between the microbatches of step {record['step']} "
            f"(one of: {names}). Such a buffer must not depend on the data: make it a float."
        )
    if in_row := cursor.skipped_in_row:
        where = _where(record, cursor)
        if policy.policy == "fail":
            refuse(f"{where}; non_finite.policy is fail")
        if in_row > policy.max:
            text = f"{where}; {in_row} steps in a row were skipped, non_finite.max is {policy.max}"
            if policy.policy == "rollback":
                _go_back(replica, text)
            refuse(text)
        if last:
            refuse(f"{where}, and it was the last one: a run that ends like this has not succeeded")
    spike = replica.spec.loss_spike
    if spike.policy == "rollback" and cursor.spikes_in_row > spike.max:
        row = f"{cursor.spikes_in_row} losses in a row were spikes, loss_spike.max is {spike.max}"
        _go_back(replica, f"the loss of step {cursor.step} is {cursor.losses[-1]:.4g}; {row}")


def doubtful(replica: Replica) -> bool:
    """Have the last steps gone wrong, in a way that may lead back? What is held may be where it began: a
    checkpoint of it would be of no use."""
    cursor, spec = replica.cursor, replica.spec
    assert cursor is not None
    skipping = spec.non_finite.policy == "rollback" and cursor.skipped_in_row > 0
    return skipping or (spec.loss_spike.policy == "rollback" and cursor.spikes_in_row > 0)


def checkpoint_due(replica: Replica, last: bool) -> bool:
    """At this boundary, by the spec? last: nothing comes after it."""
    every, at = replica.spec.checkpoint.every_steps, replica.step
    return at > 0 and (last or (every is not None and at % every == 0 and not doubtful(replica)))


def condemn(replica: Replica, names: Sequence[str]) -> NoReturn:
    """What is held is not finite, in parameters, state or buffers of these names. Raises UserFault or
    Rewound."""
    shown = ", ".join(sorted(set(names))[:3]) + (" and others" if len(set(names)) > 3 else "")
    text = f"after step {replica.step} {shown} holds NaN or infinity"
    if replica.spec.non_finite.policy == "rollback":
        _go_back(replica, text)
    refuse(f"{text}: it is not saved, and older checkpoints stay. A lower rate or clip_norm may help")


def _go_back(replica: Replica, why: str) -> NoReturn:
    """Raises Rewound, or UserFault if that was done often enough."""
    cursor, policy = replica.cursor, replica.spec.non_finite
    assert cursor is not None
    if cursor.rollbacks >= policy.rollbacks:
        often = f"rolled back {cursor.rollbacks} times already, non_finite.rollbacks is {policy.rollbacks}"
        refuse(f"{why}; {often}")
    number = cursor.rollbacks + 1
    rate = f"the learning rate is multiplied by {policy.lr_factor**number:.4g} from here on"
    raise Rewound(Rewind(cursor.proven, number, f"{why}; rollback {number} of {policy.rollbacks}, {rate}"))


def _where(record: Json | None, cursor: Cursor) -> str:
    """Who computed what is not finite. In an asynchronous run a step counts at another place than its own,
    and its worker has no rank among the servers."""
    step, bad = cursor.step - 1, record["bad"] if record is not None else []
    where = [f"rank {record['workers'].index(w)} ({w}), microbatch {j}" for j, w in bad] if record else []
    if record is not None and "task" in record:
        step, where = record["task"][0], [f"{w}, microbatch {j}" for j, w in bad]
    if where:
        return f"the loss of step {step} is not finite (NaN or infinite) on {'; '.join(where)}"
    return f"the gradient of step {step} is not finite (NaN or infinite)"

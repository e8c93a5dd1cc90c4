"""The learning rate: a pure function of applied updates, which no worker count or restart can shift."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastrain.trainers.spec import JobSpec


def learning_rate(spec: "JobSpec", update: int, total: int, rollbacks: int = 0) -> float:
    """The rate of the next update.

    update: how many updates were applied before this one (skipped steps do not count). total: planned
    updates of the job. Warmup rises linearly, (update + 1) / warmup_steps of `lr`, so the first update is
    not wasted on a rate of zero. Then the decay runs from `lr` towards `min_lr` over the updates that are
    left: it would reach `min_lr` at update `total`. rollbacks: each one lowers all of it by
    `non_finite.lr_factor`.
    """
    rate = _scheduled(spec, update, total)
    return rate * spec.non_finite.lr_factor**rollbacks if rollbacks else rate


def _scheduled(spec: "JobSpec", update: int, total: int) -> float:
    lr, schedule = spec.optimizer.lr, spec.schedule
    if update < schedule.warmup_steps:
        return lr * (update + 1) / schedule.warmup_steps
    if schedule.decay == "constant":
        return lr
    done = (update - schedule.warmup_steps) / max(1, total - schedule.warmup_steps)
    done = min(max(done, 0.0), 1.0)
    left = 1.0 - done if schedule.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return schedule.min_lr + (lr - schedule.min_lr) * left

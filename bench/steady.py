"""Steps per second with nothing going wrong: ours, plain DDP, torchft, Ray Train, and the limit of all.

    python bench/steady.py [--quick]

Two workers, no checkpoints. Bytes are counted at the loopback device: what a worker sends, another receives.
A checkpoint (every 50 steps) pauses training for what the step after it takes longer than a usual one. All it
costs is what the 25 steps after it take longer than the 25 before the next: digests are made, files written
beside training, on the same two cores. Both are averaged over the steps from one checkpoint to the next.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rig.analysis import (
    Target,
    extra_per_checkpoint,
    median,
    median_ratio,
    pause_per_checkpoint,
    per_worker_step_times,
    step_times,
)
from rig.report import bars, finish, table
from rig.rounds import Case, Measure, Results, Row, measure, options
from rig.run import Run, loopback_bytes
from rig.systems import Limit, Ours, RayTrain, Torchft, Torchrun

WORKERS = 2
PARAMETER_BYTES = 9_671_808 * 4
LEAST_MB = PARAMETER_BYTES / 1e6  # that a worker must send per step: with two, all that it has
WARM_STEPS = 8
CKPT_EVERY = 50
FAST = "DDP, tuned"  # the fastest path that does not keep the bits: the library's all-reduce, fused Adam


def main() -> int:
    chosen = options(__doc__).parse_args()
    span_s = 8.0 if chosen.quick else 20.0
    checkpoints = 4
    cases = [
        Case(Limit(), steady(span_s, together=False)),
        Case(Torchrun(name="DDP"), steady(span_s)),
        Case(Torchrun(name=FAST, setting={"variant": "tuned"}), steady(span_s)),
        Case(Torchft(), steady(span_s)),
        Case(RayTrain(), steady(span_s)),
        Case(Ours(), steady(span_s)),
        Case(
            Ours(),
            with_checkpoints(checkpoints),
            {"ckpt_every": CKPT_EVERY},
            name="elastrain, checkpoints",
        ),
    ]
    return report(measure(cases, chosen, 2 if chosen.quick else 3), chosen.out)


def steady(span_s: float, together: bool = True) -> Measure:
    """Step times over `span_s`. together: the workers wait for each other."""

    def look(run: Run) -> Row:
        first = run.wait_step(1)
        run.wait_step(WARM_STEPS, WORKERS)
        run.others()
        since, sent = run.commits()[-1]["step"], loopback_bytes()
        time.sleep(span_s)
        moved, others = loopback_bytes() - sent, run.others()
        commits = run.commits()
        times = (step_times if together else per_worker_step_times)(commits, since)
        return {
            "step_s": statistics.median(times),
            "steps_per_s": 1 / statistics.fmean(times),
            "sent_mb": moved / 1e6 / len(times) / WORKERS,
            "first_step_s": first["t"] - run.began,
            "others": others,
        }

    return look


def with_checkpoints(count: int) -> Measure:
    """What `count` checkpoints cost, averaged over the steps between them."""

    def look(run: Run) -> Row:
        run.wait_step(CKPT_EVERY, WORKERS)
        run.others()
        run.wait_step((count + 1) * CKPT_EVERY + 1, WORKERS)
        others, commits = run.others(), run.commits()
        times = step_times(commits, CKPT_EVERY)
        extra = statistics.median(extra_per_checkpoint(commits, CKPT_EVERY)) / CKPT_EVERY
        pause = statistics.median(pause_per_checkpoint(commits, CKPT_EVERY)) / CKPT_EVERY
        step_s = statistics.median(times)
        return {
            "step_s": step_s,
            "steps_per_s": 1 / statistics.fmean(times),
            "checkpoint_pause": pause / step_s,
            "checkpoint_cost": extra / step_s,
            "others": others,
        }

    return look


def report(results: Results, out: Path) -> int:
    names = [name for name, rows in results.rows.items() if rows]

    def middle(name: str, key: str) -> float | None:
        return median(row.get(key) for row in results[name])

    def against(name: str, other: str) -> float | None:
        return median_ratio(results[name], results[other], "steps_per_s")

    print(
        table(
            ["", "step, ms", "steps/s", "against DDP", "sent/step/worker, MB", "first step, s"],
            [
                [
                    name,
                    1e3 * (middle(name, "step_s") or 0.0),
                    middle(name, "steps_per_s"),
                    against(name, "DDP"),
                    middle(name, "sent_mb"),
                    middle(name, "first_step_s"),
                ]
                for name in names
            ],
        )
    )
    print(f"least that a worker can send per step: {LEAST_MB:.1f} MB")
    speeds = {name: middle(name, "steps_per_s") for name in names if name != "elastrain, checkpoints"}
    bars(out / "steady.svg", "Undisturbed training, 2 workers", "steps per second", speeds)
    ours = "elastrain"
    figures: dict[str, Any] = {
        "against_ddp": against(ours, "DDP"),
        "against_ddp_tuned": against(ours, "DDP, tuned"),
        "against_torchft": against(ours, "torchft"),
        "against_ray_train": against(ours, "Ray Train"),
        "against_limit": against(ours, "forward and backward"),
        "reproducible_slower_by": _slower(against(FAST, ours)),
        "sent_mb": middle(ours, "sent_mb"),
        "sent_against_least": (middle(ours, "sent_mb") or 0.0) / LEAST_MB or None,
        "checkpoint_pause": middle("elastrain, checkpoints", "checkpoint_pause"),
        "checkpoint_cost": middle("elastrain, checkpoints", "checkpoint_cost"),
        "steps_per_s": speeds,
    }
    targets = [
        Target("steps per second against DDP", figures["against_ddp"], 1.05, least=True),
        Target("what reproducible numerics cost", figures["reproducible_slower_by"], 0.03),
        Target("the pause for a checkpoint every 50 steps", figures["checkpoint_pause"], 0.02),
    ]
    return finish(figures, targets, results.remarks)


def _slower(fast_over_ours: float | None) -> float | None:
    return None if fast_over_ours is None else fast_over_ours - 1


if __name__ == "__main__":
    sys.exit(main())

"""A worker that becomes slow gets less work, and the result stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.harness import Fault, Run, run, toy

pytestmark = pytest.mark.engine


def slowed(folder: Path, **args: Any) -> dict[str, Any]:
    """16 microbatches a step; a process may be slowed down by a file."""
    args = {"file": str(folder / "slow"), **args}
    return toy(task="engine.tasks.sick:Slowed", task_args=args, batch={"size": 64, "microbatch": 4}, steps=90)


def slow_down(rank: int) -> Fault:
    def fault(run: Run) -> None:
        (run.folder / "slow").write_text(str(run.launcher.pid(run.active()[rank])))

    return fault


def let_go(run: Run) -> None:
    (run.folder / "slow").unlink()


def shares(run: Run) -> dict[str, list[float]]:
    """The shares that each worker had, in order."""
    told: dict[str, list[float]] = {}
    for fact in run.of_kind("worker"):
        if fact["share"] is not None:
            told.setdefault(fact["id"], []).append(fact["share"])
    return told


def test_a_worker_slowed_to_a_third_gets_about_a_third_of_the_others_work(tmp_path: Path) -> None:
    alone, calm = tmp_path / "alone", tmp_path / "calm"
    still = run(alone, slowed(alone, sleep_s=0.0), 1)
    disturbed = run(calm, slowed(calm), 3, (20, slow_down(1)), (60, let_go))
    assert disturbed.outcome is not None
    assert disturbed.outcome.outcome == "succeeded"
    assert disturbed.digests == still.digests

    detected = next(e for e in disturbed.events("straggler.detected") if e["data"]["rank"] == 1)
    worker = detected["data"]["worker"]
    assert worker in detected["message"]
    assert detected["data"]["seconds"] > 2 * detected["data"]["median"]
    had = {round(16 * share) for share in shares(disturbed)[worker]}  # shares are told with three digits
    assert had & {2, 3}, "a third of what the others have is 2 or 3 of 16"
    assert all(min(s) > 3.5 / 16 for w, s in shares(disturbed).items() if w != worker)
    assert worker in [e["data"]["worker"] for e in disturbed.events("straggler.recovered")]
    assert shares(disturbed)[worker][-1] >= 4 / 16

"""The bench that draws the plot of docs/algorithms.md writes orders by hand: a job has to take them."""

from __future__ import annotations

from pathlib import Path

import staleness
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import open_storage
from elastrain.trainers.strategies.orders import take_over


def test_an_order_that_the_bench_has_written_is_one_that_a_job_can_repeat(tmp_path: Path) -> None:
    """It had no checksum, and the plot could not be drawn any more."""
    staleness.write_order(tmp_path / f"jobs/written/checkpoints/{staleness.STEPS:010d}", 4)
    strategy = {"name": "parameter_server", "staleness": None, "replay": "written"}
    spec = parse_spec({**staleness.SPEC, "strategy": strategy})
    taken = take_over(open_storage(tmp_path.as_uri()), "mine", spec)
    assert taken is not None
    taken.must_fit(staleness.STEPS, None)
    assert max(at - task.version for at, task in enumerate(taken.order)) == 4

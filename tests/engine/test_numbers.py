"""Linear probes on real processes: what is told of a step that was skipped, and that a saved model gives the
metric that was shown. What the parameters must be, whatever the way, is in numerics/test_cases.py."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.harness import Run, probe, run

pytestmark = pytest.mark.engine
OVERFLOWS = 1e39  # infinite in single precision
BOTH = pytest.mark.parametrize("workers", [1, 2])


def end(run: Run, name: str = "w") -> Any:
    return run.tensors()[name]


@BOTH
def test_a_skipped_step_moves_neither_the_schedule_nor_the_weights(tmp_path: Path, workers: int) -> None:
    rows = [1.0] * 20
    rows[5] = OVERFLOWS  # the second microbatch of step 3
    spec = probe(rows, schedule={"decay": "linear"}, checkpoint={"every_steps": 1, "keep": 20})
    probed = run(tmp_path, spec, workers)
    assert probed.manifest()["updates"] == 9 and probed.manifest()["step"] == 10
    assert len(probed.events("step.skipped")) == 1
    assert list(probed.metric("lr").values()) == [pytest.approx(1 - u / 10) for u in range(9)]
    assert float(probed.tensors(3)["w"]) == float(probed.tensors(2)["w"])
    assert float(end(probed)) == pytest.approx(-sum(1 - u / 10 for u in range(9)), abs=1e-5)


@pytest.mark.parametrize("workers", [1, 2])
def test_batch_norm_statistics_are_the_mean_over_the_microbatches(tmp_path: Path, workers: int) -> None:
    rows = [0.0, 0.0, 10.0, 10.0]  # one microbatch of zeros, one of tens
    spec = probe(
        rows, task="Normed", batch={"size": 4, "microbatch": 2}, epochs=10, evaluate={"at_end": True}
    )
    probed = run(tmp_path, spec, workers)
    assert float(end(probed, "0.running_mean")) == pytest.approx(3.256608, abs=1e-5)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))
    model.load_state_dict(probed.tensors())
    out = model.eval()(torch.tensor(rows).reshape(-1, 1)).mean().detach()
    assert probed.metric("val_out")[10] == pytest.approx(float(out), abs=1e-6)


def test_a_sparse_gradient_is_made_dense_and_the_job_is_warned_once(tmp_path: Path) -> None:
    spec = probe([], task="Sparse", batch={"size": 6, "microbatch": 2}, workers={"min": 1, "max": 3})
    told = run(tmp_path, {**spec, "task_args": {"ids": [7, 7, 3, 7, 5, 5] * 4}}, 3).of_kind("warning")
    assert ["gradient of weight is sparse" in fact["message"] for fact in told] == [True]

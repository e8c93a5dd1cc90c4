"""Linear probes: what the parameters must be, to the digit, at any number of workers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.harness import Run, finish, kill, probe, run, scale

pytestmark = pytest.mark.engine
OVERFLOWS = 1e39  # infinite in single precision
BOTH = pytest.mark.parametrize("workers", [1, 2])


def end(run: Run, name: str = "w") -> Any:
    return run.tensors()[name]


def spec_of(rows: list[Any], microbatches: int, **fields: Any) -> dict[str, Any]:
    return probe(
        rows, batch={"size": microbatches, "microbatch": 1}, workers={"min": 1, "max": microbatches}, **fields
    )


@BOTH
def test_the_tail_of_an_epoch_is_divided_by_its_real_size(tmp_path: Path, workers: int) -> None:
    spec = spec_of([float(i) for i in range(1, 11)], 4, checkpoint={"every_steps": 1, "keep": 9})
    probed = run(tmp_path, spec, workers)
    assert [float(probed.tensors(s)["w"]) for s in (1, 2, 3)] == [-2.5, -9.0, -18.5]


def test_a_batch_larger_than_the_epoch_still_updates_once(tmp_path: Path) -> None:
    assert float(end(run(tmp_path, spec_of([1.0, 2.0, 3.0, 4.0, 5.0], 8)))) == -3.0


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_clipping_uses_the_global_norm(tmp_path: Path, workers: int) -> None:
    spec = spec_of([[3.0, 4.0]] * 4, 4, args={"sizes": {"a": 1, "b": 1}}, clip_norm=1.0)
    probed = run(tmp_path, spec, workers)
    assert float(end(probed, "a")) == pytest.approx(-0.6, abs=1e-5)
    assert float(end(probed, "b")) == pytest.approx(-0.8, abs=1e-5)
    assert probed.metric("grad_norm")[1] == pytest.approx(5.0)


def test_the_average_is_clipped_not_the_parts(tmp_path: Path) -> None:
    assert float(end(run(tmp_path, spec_of([6.0, -2.0], 2, clip_norm=1.0), 2))) == pytest.approx(
        -1.0, abs=1e-5
    )


@BOTH
def test_a_parameter_that_nobody_used_stays_put(tmp_path: Path, workers: int) -> None:
    spec = probe(
        [1.0] * 20,
        args={"sizes": {"w": 1, "u": 1}, "unused": ["u"], "start": 1.0},
        optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    )
    assert float(end(run(tmp_path, spec, workers), "u")) == 1.0


def test_low_precision_keeps_full_precision_masters(tmp_path: Path) -> None:
    spec = probe([1.0] * 200, args={"start": 1.0}, optimizer={"name": "sgd", "lr": 0.001}, precision="bf16")
    assert float(end(run(tmp_path, spec))) == pytest.approx(0.9, abs=0.002)


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


def test_finite_losses_too_large_to_add_in_single_precision_are_not_called_nan(tmp_path: Path) -> None:
    spec = probe([3e38, 3e38], args={"start": 1.0}, optimizer={"name": "sgd", "lr": 1e-38})
    probed = run(tmp_path, spec, 2)
    assert not probed.events("step.skipped")
    assert float(end(probed)) == pytest.approx(1.0 - 3.0)


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


@BOTH
def test_repeated_rows_of_a_sparse_gradient_are_summed(tmp_path: Path, workers: int) -> None:
    spec = probe([], task="Sparse", batch={"size": 6, "microbatch": 3})
    spec["task_args"] = {"ids": [7, 7, 3, 7, 5, 5]}
    weight = end(run(tmp_path, spec, workers), "weight").reshape(-1)
    expected = torch.zeros(9)
    expected[7], expected[5], expected[3] = -0.5, -2 / 6, -1 / 6
    assert torch.allclose(weight, expected, atol=1e-6)
    assert (weight[expected == 0] == 0).all()


def test_a_frozen_parameter_does_not_move_and_is_in_the_model(tmp_path: Path) -> None:
    spec = probe([1.0] * 8, args={"sizes": {"w": 1, "f": 3}, "unused": ["f"], "frozen": ["f"], "start": 2.0})
    assert (end(run(tmp_path, spec, 2), "f") == 2.0).all()


def test_the_loss_shown_is_the_mean_over_all_samples(tmp_path: Path) -> None:
    rows = [0.0] * 6 + [10.0] * 2
    spec = probe(
        rows, args={"start": 1.0}, batch={"size": 8, "microbatch": 2}, optimizer={"name": "sgd", "lr": 0.0}
    )
    for workers in (1, 2):
        assert run(tmp_path / str(workers), spec, workers).metric("loss") == {1: 2.5}


def test_the_rate_is_a_function_of_updates_alone(tmp_path: Path) -> None:
    spec = probe([1.0] * 100, schedule={"decay": "cosine"}, batch={"size": 4, "microbatch": 1}, steps=100,
                 workers={"min": 1, "max": 4})  # fmt: skip
    del spec["epochs"]
    alone = run(tmp_path / "1", spec, 1)
    resized = run(tmp_path / "4", spec, (4, 4), (30, scale(1, 2)), (60, kill(0)))
    assert alone.metric("lr") == resized.metric("lr")
    assert alone.metric("lr")[26] == pytest.approx(0.853553, abs=1e-6)


@BOTH
def test_a_parameter_that_only_one_worker_used_gets_the_mean_over_all_samples(
    tmp_path: Path, workers: int
) -> None:
    rows = [[1.0, 0.0], [1.0, 1.0]] * 5  # the second column is the gradient of u: zero, then one
    spec = probe(rows, args={"sizes": {"w": 1, "u": 1}}, optimizer={"name": "sgd", "lr": 0.1})
    assert float(end(run(tmp_path, spec, workers), "u")) == pytest.approx(-0.05 * 5)


def test_full_precision_masters_survive_a_resume(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.001}, "precision": "bf16"}
    spec = probe([1.0] * 200, args={"start": 1.0}, **fields)
    whole = run(tmp_path / "one", spec)
    run(tmp_path / "two", spec, 1, (50, finish("paused")))
    assert float(end(run(tmp_path / "two", spec, number=2))) == float(end(whole))


def test_an_epoch_that_no_size_divides_stays_whole_when_workers_come_and_go(tmp_path: Path) -> None:
    rows = [float(i) for i in range(103)]
    batch = {"size": 8, "microbatch": 2}
    spec = probe(rows, batch=batch, epochs=3, shuffle=True, seed=7, workers={"min": 1, "max": 4})
    alone = run(tmp_path / "1", spec, 1)
    resized = run(tmp_path / "4", spec, 4, (5, kill(3)), (20, scale(1, 3)))
    assert resized.steps() == list(range(1, 40))  # 13 steps an epoch, the last one of 7 samples
    assert resized.digests == alone.digests
    assert resized.manifest()["sample_chain"] == alone.manifest()["sample_chain"]
    assert resized.manifest()["samples_seen"] == 309

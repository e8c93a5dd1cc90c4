"""Exceptions in user code: said once, with the user's own line, and blamed on the right party."""

from pathlib import Path

import pytest

from engine.harness import Run, probe, run, toy

pytestmark = pytest.mark.engine


def message(run: Run) -> str:
    assert run.outcome is not None and run.outcome.outcome == "failed", run.outcome
    assert run.outcome.failed_by == "user"
    return run.outcome.message or ""


@pytest.mark.parametrize("workers", [1, 2])
def test_an_undefined_name_fails_the_job_with_its_line_first(tmp_path: Path, workers: int) -> None:
    failed = run(tmp_path, probe([1.0] * 8, task="Faulty", args={"sample": 5, "how": "raise"}), workers)
    first = message(failed).splitlines()[0]
    assert first.startswith("NameError: name 'undefined_name' is not defined (probe.py:")
    assert "step 2, microbatch 1" in message(failed)
    assert "loop.py" not in message(failed) and message(failed).count('File "') <= 6


def test_an_exception_that_another_worker_does_not_see_costs_no_step(tmp_path: Path) -> None:
    args = {"sample": 5, "how": "raise", "once": str(tmp_path / "once")}
    survived = run(tmp_path, probe([1.0] * 16, task="Faulty", args=args), 2)
    assert survived.outcome is not None and survived.outcome.outcome == "succeeded"
    assert survived.steps() == list(range(1, 9))


def test_a_missing_module_fails_at_once_and_names_it(tmp_path: Path) -> None:
    failed = run(tmp_path, toy(task="engine.tasks.probe:Broken", task_args={"how": "import"}), (1, 2))
    assert "no_such_module_zz" in message(failed).splitlines()[0]
    assert len(failed.events("worker.replaced")) == 0


def test_a_model_that_cannot_be_built_fails_on_the_second_start(tmp_path: Path) -> None:
    failed = run(tmp_path, toy(task="engine.tasks.probe:Broken", task_args={"how": "raise"}), (1, 1))
    assert "this model cannot be built" in message(failed)


def test_a_missing_task_class_is_named(tmp_path: Path) -> None:
    failed = run(tmp_path, toy(task="engine.tasks.toy:Toi"), (1, 1))
    assert "has no class 'Toi'" in message(failed)


def test_a_dataset_without_samples_is_refused(tmp_path: Path) -> None:
    failed = run(tmp_path, probe([]), (1, 1))
    assert "0 samples" in message(failed)


def test_a_nan_on_one_rank_stops_all_with_one_message(tmp_path: Path) -> None:
    spec = probe([1.0] * 48, task="Faulty", args={"sample": 25, "how": "nan"}, non_finite={"policy": "fail"})
    failed = run(tmp_path, spec, 2)
    text = message(failed)
    assert "NaN" in text and "step 12" in text and "rank 1" in text
    assert "timeout" not in text and "connection" not in text


def test_too_many_non_finite_steps_in_a_row_fail_the_job(tmp_path: Path) -> None:
    spec = probe([1.0, 1.0] + [1e39] * 20, non_finite={"policy": "skip", "max": 3})
    failed = run(tmp_path, spec, 1)
    assert "4 steps in a row were skipped" in message(failed)


def test_a_buffer_that_depends_on_the_data_is_refused_by_name(tmp_path: Path) -> None:
    failed = run(tmp_path, probe([1.0] * 8, task="Counting"), 2)
    assert "seen" in message(failed) and "buffer" in message(failed)

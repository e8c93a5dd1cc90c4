"""A microbatch that takes down whatever computes it, and code that ends its process before it is ready."""

from pathlib import Path

import pytest

from engine.checks import check_nobody_is_left
from engine.harness import Run, probe, run, show

pytestmark = pytest.mark.engine


def deadly(folder: Path, workers: int, spares: int = 0, how: str = "vanish") -> Run:
    """Six microbatches a step; the third of the second step is the deadly one."""
    spec = probe(
        [1.0] * 24,
        task="Faulty",
        args={"sample": 8, "how": how, "sleep_s": 0.02},
        batch={"size": 6, "microbatch": 1},
        workers={"min": 1, "max": 3, "spares": spares},
    )
    died = run(folder, spec, workers)
    show(died)
    return died


@pytest.mark.parametrize(("workers", "spares"), [(3, 1), (3, 0), (1, 0), (1, 1)])
def test_a_deadly_microbatch_fails_the_job_after_three_generations_by_name(
    tmp_path: Path, workers: int, spares: int
) -> None:
    died = deadly(tmp_path, workers, spares)
    assert died.outcome is not None
    assert (died.outcome.outcome, died.outcome.failed_by, died.outcome.step) == ("failed", "user", 1)
    assert "3 times in a row at step 1, microbatch 2 (" in (died.outcome.message or "")
    assert len(died.events("worker.lost")) == 3, "it did not kill every worker in turn"
    check_nobody_is_left(died)


@pytest.mark.parametrize("staleness", [0, 1, None])
def test_a_deadly_microbatch_is_named_where_the_others_are_steps_ahead_of_it(
    tmp_path: Path, staleness: int | None
) -> None:
    """Asynchronous: when it kills for the third time, later steps have counted long ago."""
    spec = probe(
        [1.0] * 60,
        task="Faulty",
        args={"sample": 8, "how": "vanish", "sleep_s": 0.02},
        batch={"size": 6, "microbatch": 1},
        strategy={"name": "parameter_server", "staleness": staleness},
        workers={"min": 1, "max": 3},
    )
    died = run(tmp_path, spec, 3)
    show(died)
    assert died.outcome is not None
    assert (died.outcome.outcome, died.outcome.failed_by) == ("failed", "user")
    assert "3 times in a row at step 1, microbatch 2 (" in (died.outcome.message or "")
    assert len(died.events("worker.lost")) == 3
    check_nobody_is_left(died)


def test_a_deadly_microbatch_that_crashes_in_native_code_is_named_the_same_way(tmp_path: Path) -> None:
    died = deadly(tmp_path, 3, 1, how="segfault")
    assert died.outcome is not None and "at step 1, microbatch 2 (" in (died.outcome.message or "")
    assert {e["data"]["cause"] for e in died.events("worker.exited")} == {"signal 11 (SIGSEGV)"}


@pytest.mark.parametrize(("workers", "spares"), [(1, 0), (3, 1)])
def test_code_that_ends_the_process_before_it_is_ready_is_tried_five_times(
    tmp_path: Path, workers: int, spares: int
) -> None:
    spec = probe([], task="Broken", batch={"size": 6, "microbatch": 1})
    spec |= {"task_args": {"how": "exit"}, "workers": {"min": 1, "max": 3, "spares": spares}}
    died = run(tmp_path, spec, workers)
    show(died)
    assert died.outcome is not None
    assert (died.outcome.outcome, died.outcome.failed_by) == ("failed", "infrastructure")
    assert "exit code 1; exit code 1" in (died.outcome.message or "")
    assert len({w["id"] for w in died.of_kind("worker")}) == 5

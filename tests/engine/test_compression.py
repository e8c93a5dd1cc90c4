"""Compressed gradients: the same bits for any number of workers, through deaths, rollbacks and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.checks import check
from engine.harness import Run, finish, kill, once_saved, run, toy

pytestmark = pytest.mark.engine

SCHEMES: dict[str, dict[str, Any]] = {
    "bf16": {"compression": "bf16"},
    "fp16": {"compression": "fp16"},
    "int8": {"compression": "int8"},
    "topk": {"compression": {"name": "topk", "fraction": 0.1}},
    "powersgd": {"compression": {"name": "powersgd", "rank": 2}},
    "both ways": {"compression": "int8", "compression_down": "int8"},
}


def compressed(name: str, **fields: Any) -> dict[str, Any]:
    return toy(workers={"min": 1, "max": 4}, **SCHEMES[name], **fields)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return {name: run(tmp_path_factory.mktemp(name), compressed(name)) for name in SCHEMES}


@pytest.mark.parametrize("name", SCHEMES)
def test_two_of_three_workers_died_and_no_bit_of_the_result_nor_of_a_residual_changed(
    tmp_path: Path, alone: dict[str, Run], name: str
) -> None:
    died = run(tmp_path, compressed(name), 3, (6, kill(0)), (23, kill(1)))
    check(died, alone[name])
    assert len(died.events("worker.lost")) == 2 and not died.events("rollback")


@pytest.mark.parametrize("name", ["int8", "topk", "powersgd", "both ways"])
def test_two_workers_give_the_bits_of_one(tmp_path: Path, alone: dict[str, Run], name: str) -> None:
    check(run(tmp_path, compressed(name), 2), alone[name])


@pytest.mark.parametrize("name", ["both ways", "powersgd"])
def test_both_who_kept_a_residual_died_and_the_job_went_back_to_the_checkpoint_that_has_it(
    tmp_path: Path, alone: dict[str, Run], name: str
) -> None:
    died = run(tmp_path, compressed(name), 4, (15, once_saved(10, kill(0))), (15, once_saved(10, kill(1))))
    check(died, alone[name])
    (rollback,) = died.events("rollback")
    assert rollback["data"]["to"] == 10


@pytest.mark.parametrize("name", ["topk", "powersgd", "both ways"])
def test_a_job_that_was_paused_goes_on_with_what_was_left_out_before(
    tmp_path: Path, alone: dict[str, Run], name: str
) -> None:
    first = run(tmp_path, compressed(name), 3, (13, finish("preempted")))
    assert first.outcome is not None and first.outcome.outcome == "preempted"
    second = run(tmp_path, compressed(name), 2, number=2)
    assert second.digests == alone[name].digests
    assert second.manifest()["sample_chain"] == alone[name].manifest()["sample_chain"]


def test_each_scheme_gives_another_result_and_none_the_uncompressed_one(
    tmp_path: Path, alone: dict[str, Run]
) -> None:
    plain = run(tmp_path, toy(workers={"min": 1, "max": 4}))
    assert len({plain.digests[0], *(r.digests[0] for r in alone.values())}) == len(SCHEMES) + 1


@pytest.mark.parametrize("name", ["powersgd", "both ways"])
def test_servers_of_packed_gradients_have_the_same_bits_also_after_deaths(
    tmp_path: Path, alone: dict[str, Run], name: str
) -> None:
    strategy = {"name": "parameter_server", "staleness": 0, "servers": 2}  # which have the first ranks
    spec = compressed(name, strategy=strategy, task_args={"sleep_s": 0.02})
    served = run(tmp_path, spec, 2, (6, kill(2)), (20, kill(0)))
    assert served.digests == alone[name].digests and not served.events("rollback")
    assert len(served.events("worker.lost")) == 2

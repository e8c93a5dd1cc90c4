"""A bit flips in one worker's memory, and nobody says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.harness import Fault, Run, run, toy

pytestmark = pytest.mark.engine


def rotting(folder: Path, **fields: Any) -> dict[str, Any]:
    return toy(task="engine.tasks.sick:Rotting", task_args={"file": str(folder / "rot")}, **fields)


PADDING, WEIGHT = 5, 100  # elements of the first chunk


def rot(rank: int, slot: str, piece: int = 0, element: int = WEIGHT) -> Fault:
    """A bit flips in the next microbatch of this rank. piece: which of the chunks that it keeps."""

    def fault(run: Run) -> None:
        pid = run.launcher.pid(run.active()[rank])
        (run.folder / "rot.new").write_text(f"{pid} {slot} {piece} {element}")
        (run.folder / "rot.new").rename(run.folder / "rot")

    return fault


def loaded(run: Run) -> list[int]:
    return [e["data"]["step"] for e in run.events("checkpoint.restored")]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("calm")
    return run(folder, rotting(folder), 1)


@pytest.mark.parametrize(("slot", "element"), [("param", WEIGHT), ("exp_avg_sq", WEIGHT), ("param", PADDING)])
def test_a_flipped_bit_is_found_before_the_next_checkpoint_which_is_not_made_of_it(
    tmp_path: Path, calm: Run, slot: str, element: int
) -> None:
    sick = run(tmp_path, rotting(tmp_path), 3, (17, rot(1, slot, element=element)))
    [found] = sick.events("corruption")
    [difference] = found["data"]["differences"]
    assert (found["data"]["step"], found["data"]["agreed"]) == (20, 10)
    assert found["data"]["removed"] == []
    assert "w1" in (difference["owner"], difference["buddy"])
    assert difference["owner"] in found["message"]
    assert difference["buddy"] in found["message"]
    assert "127.0.0.1" in found["message"]
    assert loaded(sick) == [10]
    [rollback] = sick.events("rollback")
    assert rollback["data"] == {"from": 20, "to": 10}
    assert not sick.events("worker.lost")
    assert sick.digests == calm.digests


def test_of_two_workers_each_has_everything_and_everything_is_compared(tmp_path: Path, calm: Run) -> None:
    sick = run(tmp_path, rotting(tmp_path), 2, (12, rot(0, "exp_avg", -1)))
    [found] = sick.events("corruption")
    assert {found["data"]["differences"][0][k] for k in ("owner", "buddy")} == {"w0", "w1"}
    assert sick.digests == calm.digests


def test_a_bit_that_flips_in_the_last_steps_does_not_end_in_the_model(tmp_path: Path, calm: Run) -> None:
    sick = run(tmp_path, rotting(tmp_path, checkpoint={"every_steps": None}), 2, (38, rot(1, "param")))
    [found] = sick.events("corruption")
    assert found["data"]["step"] == 40
    assert sick.events("rollback")[0]["data"] == {"from": 40, "to": 0}
    assert sick.digests == calm.digests


def test_the_same_two_differ_again_and_both_are_replaced(tmp_path: Path, calm: Run) -> None:
    sick = run(tmp_path, rotting(tmp_path), 2, (13, rot(1, "param")), (24, rot(1, "param")))
    first, second = sick.events("corruption")
    assert (first["data"]["removed"], second["data"]["removed"]) == ([], ["w0", "w1"])
    assert {e["data"]["worker"] for e in sick.events("worker.lost")} == {"w0", "w1"}
    assert loaded(sick) == [10, 20]
    assert sick.digests == calm.digests


def test_whoever_differs_from_several_others_is_replaced(tmp_path: Path, calm: Run) -> None:
    """Rank 1 owns a chunk that one worker keeps for it, and keeps another one's."""
    sick = run(tmp_path, rotting(tmp_path), 3, (13, rot(1, "exp_avg", 0)), (24, rot(1, "exp_avg", 1)))
    first, second = sick.events("corruption")
    assert (first["data"]["removed"], second["data"]["removed"]) == ([], ["w1"])
    assert [e["data"]["worker"] for e in sick.events("worker.lost")] == ["w1"]
    assert sick.digests == calm.digests


def test_a_model_that_is_not_the_same_on_all_workers_is_refused(tmp_path: Path) -> None:
    ended = run(tmp_path, toy(task="engine.tasks.sick:Unseeded"), 2)
    assert ended.outcome is not None
    assert (ended.outcome.outcome, ended.outcome.failed_by) == ("failed", "user")
    assert "Unseeded.model() gives other parameters on w1 than on w0" in (ended.outcome.message or "")

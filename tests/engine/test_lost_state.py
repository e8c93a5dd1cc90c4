"""Nobody is left who holds some of the state: back to the newest checkpoint, and said so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from elastrain.trainers.membership.messages import Json
from engine.checks import check
from engine.harness import Run, kill, kill_all, once_saved, run, toy

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("one"), toy())


def check_rolled_back(disturbed: Run, undisturbed: Run, to: int) -> None:
    """One rollback, said once; what was computed again has replaced what was said before."""
    check(disturbed, undisturbed)
    (rollback,) = disturbed.events("rollback")
    assert rollback["data"]["to"] == to < rollback["data"]["from"]
    assert disturbed.events("checkpoint.restored")[0]["data"] == {"step": to}
    points = [f for f in disturbed.of_kind("metric") if "loss" in f["values"]]
    again = [f for f in points if f["epoch_no"] == 1]
    assert [f["step"] for f in again] == list(range(to + 1, 41))
    older = {f["step"]: f["values"]["loss"] for f in points if f["epoch_no"] == 0}
    assert all(older.get(f["step"], f["values"]["loss"]) == f["values"]["loss"] for f in again)


def test_the_only_worker_died(tmp_path: Path, undisturbed: Run) -> None:
    check_rolled_back(run(tmp_path, toy(), 1, (15, once_saved(10, kill(0)))), undisturbed, to=10)


def test_the_workers_of_two_groups_died_which_kept_each_others_state(
    tmp_path: Path, undisturbed: Run
) -> None:
    spec = toy(workers={"min": 2, "max": 6, "per_group": 2})
    died = run(tmp_path, spec, 6, (15, once_saved(10, kill(0))), (15, once_saved(10, kill(2))))
    check_rolled_back(died, undisturbed, to=10)
    assert len(died.events("worker.lost")) == 4


def test_the_workers_of_one_group_died_and_nothing_was_lost(tmp_path: Path, undisturbed: Run) -> None:
    spec = toy(workers={"min": 2, "max": 6, "per_group": 2})
    died = run(tmp_path, spec, 4, (15, kill(0)), (15, kill(1)))
    check(died, undisturbed)
    assert not died.events("rollback")


def test_the_buddy_died_while_the_others_were_told_of_the_owners_death(
    tmp_path: Path, undisturbed: Run
) -> None:
    def then_the_buddy(fact: dict[str, Any]) -> None:
        if fact.get("type") == "worker.lost" and fact["data"]["worker"] == "w0":
            os.kill(died.launcher.pid("w1"), signal.SIGKILL)

    died = Run(tmp_path, toy(), (4, 4), faults=[(15, once_saved(10, kill(0)))], on_fact=then_the_buddy)
    died.go()
    check_rolled_back(died, undisturbed, to=10)


def test_the_buddy_died_while_the_owners_state_moved_to_its_next_keeper(
    tmp_path: Path, undisturbed: Run
) -> None:
    def then_the_buddy(run: Run) -> None:
        coordinator = run.attempt.coordinator
        inner = coordinator.tell

        def tell(workers: Iterable[str], message: Json) -> None:
            if message["kind"] == "open":  # the moment before they hear of it
                coordinator.tell = inner  # type: ignore[method-assign]
                os.kill(run.launcher.pid("w1"), signal.SIGKILL)
            inner(workers, message)

        coordinator.tell = tell  # type: ignore[method-assign]
        kill(0)(run)

    check_rolled_back(run(tmp_path, toy(), 4, (15, once_saved(10, then_the_buddy))), undisturbed, to=10)


@pytest.mark.parametrize("whom", ["owner_and_buddy", "all"])
def test_they_died_while_a_checkpoint_was_uploaded_and_the_one_before_it_was_used(
    tmp_path: Path, undisturbed: Run, whom: str
) -> None:
    """A file where the checkpoint's folder should be: every upload is tried again for seconds."""
    blocked = tmp_path / "objects/jobs/job/checkpoints/0000000020"

    def block(_: Run) -> None:
        blocked.parent.mkdir(parents=True, exist_ok=True)
        blocked.write_text("in the way")

    def clear(fact: dict[str, Any]) -> None:
        if fact.get("type") == "rollback":
            blocked.unlink()

    dying = [(22, kill_all)] if whom == "all" else [(22, kill(0)), (22, kill(1))]
    died = run(tmp_path, toy(), 4, (5, block), *dying, on_fact=clear)
    check_rolled_back(died, undisturbed, to=10)
    # one that failed is made up for at the next boundary: there may be others than those that were due
    saved = [event["data"]["step"] for event in died.events("checkpoint.saved")]
    assert [step for step in saved if step % 10 == 0][-3:] == [20, 30, 40]


def test_they_died_again_and_again_before_the_next_checkpoint(tmp_path: Path, undisturbed: Run) -> None:
    def again(fact: dict[str, Any]) -> None:
        if fact["kind"] == "metric" and fact["epoch_no"] < 3 and fact["step"] == 13 + fact["epoch_no"]:
            died.soon(once_saved(10, kill_all))

    died = Run(tmp_path, toy(), (2, 2), on_fact=again)
    died.go()
    check(died, undisturbed)
    assert [e["data"]["to"] for e in died.events("rollback")] == [10, 10, 10]

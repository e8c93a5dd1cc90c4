"""Workers are told to end, by a real SIGTERM: nothing is lost, and nobody is killed."""

import os
import signal
from pathlib import Path

import pytest

from engine.harness import Fault, Run, run, show, toy

pytestmark = pytest.mark.engine


def terminate(*ranks: int) -> Fault:
    """SIGTERM to workers by their present ranks, all at once."""

    def fault(run: Run) -> None:
        for pid in [run.launcher.pid(run.active()[rank]) for rank in ranks]:
            os.kill(pid, signal.SIGTERM)

    return fault


def check_nothing_lost(done: Run, alone: Run) -> None:
    show(done)
    assert done.outcome is not None and done.outcome.outcome == "succeeded"
    assert done.digests == alone.digests
    assert done.steps() == list(range(1, len(alone.steps()) + 1)), "none lost, none redone"
    assert done.events("rollback") == []


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("alone"), toy())


SLOW = {"task_args": {"sleep_s": 0.02}}


def test_one_of_three_gets_a_notice_and_a_spare_takes_its_place(tmp_path: Path, alone: Run) -> None:
    spec = toy(workers={"min": 1, "max": 3, "spares": 1}, **SLOW)
    done = run(tmp_path, spec, 3, (10, terminate(1)))
    check_nothing_lost(done, alone)
    assert [e["data"] for e in done.events("worker.notice")] == [
        {"worker": "w1", "group": "g1", "why": "SIGTERM", "grace_s": 30.0}
    ]
    assert done.events("worker.lost") == []

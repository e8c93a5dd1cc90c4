"""Workers are told to end, by a real SIGTERM: no step is lost or done twice, and nobody has to be killed."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastrain.trainers.launching.launcher import GroupStart
from engine.checks import check
from engine.harness import Fault, Run, kill, probe, run, show, toy
from engine.rough_launcher import RoughLauncher

pytestmark = pytest.mark.engine

SHORT = {"steps": 12, "task_args": {"sleep_s": 0.02}}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("alone"), toy(**SHORT))


def terminate(*ranks: int, number: int = signal.SIGTERM) -> Fault:
    """A signal to workers by their present ranks, all at once."""

    def fault(run: Run) -> None:
        for pid in [run.launcher.pid(run.active()[rank]) for rank in ranks]:
            os.kill(pid, number)

    return fault


def when(type_: str, fault: Fault) -> dict[str, Any]:
    """Do it once, at the first event of this type."""
    todo = [fault]

    def on_event(self: Run, fact: dict[str, Any]) -> None:
        if fact.get("type") == type_ and todo:
            self.soon(todo.pop())

    return {"on_event": on_event}


def disturbed(
    folder: Path, spec: dict[str, Any], workers: int, *faults: tuple[int, Fault], **also: Any
) -> Run:
    """A run that hears of its own events."""
    on_event = also.pop("on_event", None)
    made = Run(folder, spec, (workers, workers), faults=list(faults), **also)
    if on_event is not None:
        made.on_fact = lambda fact: on_event(made, fact)
    done = made.go()
    show(done)
    return done


def kill_those_left(node: list[psutil.Process]) -> None:
    for process in node:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


class FullCluster(RoughLauncher):
    """Has room for as many groups as begin, and for others once it is said."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs)
        self.waiting: list[GroupStart] = []
        self.full = False

    def start(self, group: GroupStart) -> None:
        if self.full:
            self.waiting.append(group)
        else:
            super().start(group)

    def make_room(self, _: Run) -> None:
        self.full = False
        for group in self.waiting:
            super().start(group)


def check_graceful(done: Run, alone: Run, *left: str) -> None:
    """Same bits, every step once, and who left did so by itself."""
    check(done, alone)
    assert done.steps() == list(range(1, len(alone.steps()) + 1))
    assert done.events("rollback") == done.events("worker.lost") == []
    assert [e["data"]["worker"] for e in done.events("worker.left")] == [*left]
    roster = done.attempt.machine.roster
    ends = {w: roster.groups[roster.workers[w].group].causes.get(w) for w in left}
    assert ends == dict.fromkeys(left, "exit code 0")


def test_one_of_three_gets_a_notice_and_a_spare_takes_its_place(tmp_path: Path, alone: Run) -> None:
    spec = toy(workers={"min": 1, "max": 3, "spares": 1}, **SHORT)
    done = disturbed(tmp_path, spec, 3, (5, terminate(1)))
    (notice,) = [e["data"] for e in done.events("worker.notice")]
    assert (notice["why"], notice["grace_s"]) == ("SIGTERM", 30.0)
    check_graceful(done, alone, notice["worker"])
    first, second = [set(g["workers"]) for g in done.of_kind("generation")]
    assert len(first) == len(second) == 3 and len(second - first) == 1, "all in one re-forming"
    assert first - second == {notice["worker"]}


def test_both_workers_of_a_group_get_a_notice(tmp_path: Path, alone: Run) -> None:
    spec = toy(workers={"min": 2, "max": 4, "per_group": 2}, **SHORT)
    check_graceful(disturbed(tmp_path, spec, 4, (5, terminate(2, 3))), alone, "w2", "w3")


def test_owner_and_buddy_get_a_notice_together(tmp_path: Path, alone: Run) -> None:
    check_graceful(disturbed(tmp_path, toy(**SHORT), 4, (5, terminate(0, 1))), alone, "w0", "w1")


def test_everybody_gets_a_notice_and_the_replacements_take_over(tmp_path: Path, alone: Run) -> None:
    spec = toy(**{**SHORT, "task_args": {"sleep_s": 0.1}})
    done = disturbed(tmp_path, spec, 2, (2, terminate(0, 1)))
    check_graceful(done, alone, *[e["data"]["worker"] for e in done.events("worker.left")])
    assert done.events("checkpoint.restored") == []
    assert {"w0", "w1"} <= {e["data"]["worker"] for e in done.events("worker.left")}


@pytest.mark.parametrize("workers", [1, 2])
def test_everybody_gets_a_notice_and_nobody_comes_in_time(tmp_path: Path, alone: Run, workers: int) -> None:
    """What is saved is saved within the grace time: then the node kills whoever is there still."""
    grace_s = 6.0
    spec = toy(task="engine.tasks.toy:Hurried", steps=12, task_args={"sleep_s": 0.15, "grace_s": grace_s})
    cluster = FullCluster(tmp_path / "logs")

    def no_room(run: Run) -> None:
        cluster.full = True
        node = [*cluster.started]
        terminate(*range(workers))(run)
        run.later(grace_s, lambda _: kill_those_left(node))

    room = when("worker.left", cluster.make_room)
    done = disturbed(tmp_path, spec, workers, (5, no_room), launch=lambda _: cluster, **room)
    left = [f"w{i}" for i in range(workers)]
    assert {e["data"]["worker"] for e in done.events("worker.left")} >= {*left}
    check_graceful(done, alone, *[e["data"]["worker"] for e in done.events("worker.left")])
    (restored,) = done.events("checkpoint.restored")
    formed = next(e["data"] for e in done.events("generation.formed") if left[0] not in e["data"]["workers"])
    assert restored["data"]["step"] == formed["step"] >= 5


def test_a_notice_while_the_others_re_form_after_a_death(tmp_path: Path, alone: Run) -> None:
    done = disturbed(tmp_path, toy(**SHORT), 3, (5, kill(0)), **when("worker.lost", terminate(1)))
    check(done, alone)
    assert done.steps() == list(range(1, 13)) and not done.events("rollback")
    assert [e["data"]["worker"] for e in done.events("worker.lost")] == ["w0"]
    (noticed,) = [e["data"]["worker"] for e in done.events("worker.notice")]
    assert noticed in [e["data"]["worker"] for e in done.events("worker.left")]


def test_a_notice_and_then_a_kill_before_the_boundary(tmp_path: Path, alone: Run) -> None:
    slow = {**SHORT, "task_args": {"sleep_s": 0.1}}
    done = disturbed(
        tmp_path,
        toy(**slow),
        3,
        (5, terminate(1)),
        **when("worker.notice", terminate(1, number=signal.SIGKILL)),
    )
    check(done, alone)
    assert done.steps() == list(range(1, 13)) and not done.events("rollback")
    assert [e["data"]["worker"] for e in done.events("worker.lost")] == ["w1"]


def test_many_signals_are_one_notice(tmp_path: Path, alone: Run) -> None:
    done = disturbed(tmp_path, toy(**SHORT), 2, (5, terminate(*[1] * 20)))
    check_graceful(done, alone, "w1")
    assert len(done.events("worker.notice")) == 1


def test_a_worker_that_is_not_ready_yet_is_simply_ended(tmp_path: Path, alone: Run) -> None:
    def first(run: Run) -> None:
        os.kill(run.launcher.pid("w1"), signal.SIGTERM)

    done = disturbed(tmp_path, toy(**SHORT), 2, **when("worker.started", first))
    check(done, alone)
    assert [e["data"]["cause"] for e in done.events("worker.exited")] == ["signal 15 (SIGTERM)"]


def test_a_handler_of_the_tasks_own_is_called_and_cannot_end_the_worker(tmp_path: Path) -> None:
    spec = probe([1.0] * 40, task="Handles", workers={"min": 1, "max": 2})
    done = disturbed(tmp_path, spec, 2, (5, terminate(1)))
    assert done.steps() == list(range(1, 21))
    assert [e["data"]["worker"] for e in done.events("worker.left")] == ["w1"]
    assert "the task's own handler" in done.log("w1") and "SystemExit" in done.log("w1")


def test_a_child_of_user_code_can_still_be_ended(tmp_path: Path) -> None:
    done = disturbed(tmp_path, probe([1.0] * 8, task="Forks"), 1)
    assert "the child ended with signal 15" in done.log("w0")
    assert done.events("worker.notice") == []

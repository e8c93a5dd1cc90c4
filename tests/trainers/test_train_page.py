"""An attempt on Ray's list of Train runs; whatever becomes of that list, the job does not notice."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from elastrain.trainers.coordination.attempt import Outcome
from elastrain.trainers.launching import train_page
from elastrain.trainers.launching.ray_train_page import SWITCH, Scribe, Shown, open_page
from elastrain.trainers.launching.train_page import Away, Tell, TrainPage
from elastrain.trainers.spec import parse_spec

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = "ray.train.v2._internal.state"
SPEC = parse_spec(
    {
        "name": "digits",
        "task": "tasks:T",
        "batch": {"size": 8, "microbatch": 2},
        "epochs": 1,
        "env": {"KEY": "canary"},
        "task_args": {"key": "canary"},
    }
)
SUCCEEDED = Outcome("succeeded", 9)
Json = dict[str, Any]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Tell], TrainPage]]:
    """Opens pages of one attempt; what a test leaves open is closed."""
    monkeypatch.setattr(train_page, "EVERY_S", 0.01)
    monkeypatch.setattr(train_page, "AGAIN_S", 0.01)
    pages: list[TrainPage] = []

    def opened(tell: Tell) -> TrainPage:
        pages.append(TrainPage(Shown(SPEC, "j-1", 2), tell))
        return pages[-1]

    yield opened
    for page in pages:
        page.close(SUCCEEDED)


class Told:
    """Ray's list, as far as these tests need one."""

    def __init__(self) -> None:
        self.runs: list[tuple[Json, Json]] = []
        self.trouble: Exception | None = None
        self.held = threading.Event()
        self.held.set()
        self.asked = 0

    def __call__(self, run: Json, attempt: Json) -> None:
        self.asked += 1
        self.held.wait()
        if self.trouble is not None:
            raise self.trouble
        self.runs.append((run, attempt))

    @property
    def now(self) -> tuple[str, str | None]:
        return self.runs[-1][0]["status"], self.runs[-1][0]["status_detail"]


def trains(page: TrainPage | Shown, *workers: str) -> None:
    """A generation of these workers is formed, on nodes by turns."""
    for number, worker in enumerate(workers):
        where = {"node": f"n{number % 2}", "pid": 100 + number, "rank": number, "state": "active"}
        page.take({"kind": "worker", "id": worker, **where})
    page.take({"kind": "generation", "generation": 1, "workers": list(workers)})
    page.take({"kind": "progress", "status": "running", "reason": None})


def eventually(look: Callable[[], Any]) -> None:
    while not look():  # the test's own timeout ends it
        threading.Event().wait(0.002)


def test_a_run_has_the_jobs_name_and_its_workers_by_rank(opened: Callable[[Tell], TrainPage]) -> None:
    told = Told()
    page = opened(told)
    held = {"actor": "a1", "address": "10.0.0.1", "resources": {"CPU": 2.0}}
    page.take({"kind": "actor", "worker": "w1", **held})
    trains(page, "w1", "w2", "w3")
    eventually(lambda: told.runs)
    run, attempt = told.runs[0]
    assert (run["id"], run["name"], run["status"]) == ("j-1-2", "digits-j-1-2", "RUNNING")
    assert run["end_time_ns"] is None and attempt["run_id"] == "j-1-2" and attempt["status"] == "RUNNING"
    ranks = [(w["world_rank"], w["node_rank"], w["local_rank"], w["pid"]) for w in attempt["workers"]]
    assert ranks == [(0, 0, 0, 100), (1, 1, 0, 101), (2, 0, 1, 102)]
    first = attempt["workers"][0]
    assert (first["actor_id"], first["node_id"], first["node_ip"]) == ("a1", "n0", "10.0.0.1")
    assert first["resources"] == {"resources": {"CPU": 2.0}} and first["status"] == "ALIVE"
    assert "canary" not in repr(told.runs), "anybody may read it"


def test_a_worker_that_left_is_not_shown_any_more_and_nothing_is_said_twice(
    opened: Callable[[Tell], TrainPage],
) -> None:
    told = Told()
    page = opened(told)
    trains(page, "w1", "w2")
    eventually(lambda: told.runs)
    page.take({"kind": "generation", "generation": 2, "workers": ["w2"]})
    page.take({"kind": "worker", "id": "w1", "node": "n0", "pid": 100, "rank": None, "state": "lost"})
    eventually(lambda: len(told.runs[-1][1]["workers"]) == 1)
    for step in range(3):  # nothing of it is shown
        page.take({"kind": "metric", "step": step, "values": {"loss": 1.0}})
    page.take({"kind": "progress", "status": "running", "reason": "waiting_for_workers"})
    eventually(lambda: told.now == ("RUNNING", "waiting for workers"))
    assert len({repr(shown) for shown in told.runs}) == len(told.runs)


@pytest.mark.parametrize(
    ("outcome", "shown"),
    [
        (SUCCEEDED, ("FINISHED", None)),
        (Outcome("failed", 3, "user", "ValueError: no"), ("ERRORED", "ValueError: no")),
        (Outcome("failed", 3, "infrastructure", "x" * 20_000), ("ERRORED", "x" * 10_000)),
        (Outcome("cancelled", 3), ("ABORTED", "cancelled")),
        (Outcome("cancelled", 3, None, "another attempt"), ("ABORTED", "another attempt")),
        (Outcome("paused", 3), ("ABORTED", "paused")),
        (Outcome("preempted", 3), ("ABORTED", "preempted")),
    ],
)
def test_a_run_ends_as_its_attempt_did_and_with_its_message(
    opened: Callable[[Tell], TrainPage], outcome: Outcome, shown: tuple[str, str | None]
) -> None:
    told = Told()
    page = opened(told)
    trains(page, "w1")
    eventually(lambda: told.runs)
    page.close(outcome)
    run, attempt = told.runs[-1]
    assert told.now == shown and attempt["status"] == shown[0] and attempt["status_detail"] == shown[1]
    assert run["end_time_ns"] >= run["start_time_ns"] > 0
    assert [worker["status"] for worker in attempt["workers"]] == ["DEAD"]


def test_an_attempt_that_failed_before_it_trained_is_shown_too(
    opened: Callable[[Tell], TrainPage],
) -> None:
    told = Told()
    page = opened(told)
    page.take({"kind": "progress", "status": "starting", "reason": None})
    page.close(Outcome("failed", 0, "user", "no such task"))
    assert [run["status"] for run, _ in told.runs] == ["ERRORED"], "and nothing before"


def test_a_ray_whose_private_api_is_another_costs_one_line_of_the_log(
    opened: Callable[[Tell], TrainPage], caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    told.trouble = ImportError("Ray's own words\nNo module named 'ray.train.v2._internal.state'")
    page = opened(told)
    trains(page, "w1")
    eventually(lambda: caplog.records)
    trains(page, "w1", "w2")
    page.close(SUCCEEDED)
    (line,) = caplog.records
    assert line.levelno == logging.WARNING and told.asked == 1
    assert line.getMessage() == (
        "digits-j-1-2 is not on Ray's list of Train runs: this version of Ray does not take it "
        "(ImportError: No module named 'ray.train.v2._internal.state'). The job goes on."
    )


def test_what_rays_actor_did_not_take_is_named_by_its_field(
    opened: Callable[[Tell], TrainPage], caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    told.trouble = RuntimeError("pages of Ray's own words")
    cause = ValueError("1 error for TrainRun\nstatus\n  Field required\n  For more see elsewhere")
    told.trouble.cause = cause  # type: ignore[attr-defined]  # as a RayTaskError has it
    trains(opened(told), "w1")
    eventually(lambda: caplog.records)
    assert "(ValueError: 1 error for TrainRun status Field required)" in caplog.text


def test_a_list_that_is_away_for_a_while_is_told_later_and_complained_of_once(
    opened: Callable[[Tell], TrainPage], caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    told.trouble = Away("the head is away")
    page = opened(told)
    trains(page, "w1")
    eventually(lambda: told.asked > 3)
    told.trouble = None
    eventually(lambda: told.runs)
    assert len(caplog.records) == 1 and "the head is away" in caplog.text


def test_a_list_that_never_answers_holds_up_neither_the_job_nor_its_end(
    opened: Callable[[Tell], TrainPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_page, "CLOSE_S", 0.01)
    told = Told()
    told.held.clear()
    page = opened(told)
    trains(page, "w1")
    eventually(lambda: told.asked)
    trains(page, "w1", "w2")  # the driver's loop does not wait for the thread
    page.close(SUCCEEDED)
    assert not told.runs
    told.held.set()


def test_a_fact_that_is_not_understood_is_logged_and_reaches_nobody(
    opened: Callable[[Tell], TrainPage], caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    page = opened(told)
    page.take({"kind": "generation"})
    assert "'generation' is not shown" in caplog.text
    trains(page, "w1")
    eventually(lambda: told.runs)


def test_the_list_is_left_alone_where_rays_own_switch_is_off() -> None:
    assert open_page(SPEC, "j-1", 2, "x-j-1-2", {SWITCH: "0"}) is None


def test_rays_private_api_is_used_in_one_file_only() -> None:
    sources = [p for root in ("api", "service", "trainers") for p in (ROOT / root).rglob("*.py")]
    assert [p.name for p in sources if "ray.train.v2._internal" in p.read_text()] == ["ray_train_page.py"]


class FakeRay:
    """Ray's private modules, as far as the scribe uses them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[Any] = []
        state, schema = ModuleType(PRIVATE), ModuleType("schema")
        state_actor, ray = ModuleType(f"{PRIVATE}.state_actor"), ModuleType("ray")
        state.schema = schema  # type: ignore[attr-defined]
        schema.TrainRun, schema.TrainRunAttempt = self._made, self._made  # type: ignore[attr-defined]
        append = SimpleNamespace(remote=self.told.append)
        actor = SimpleNamespace(create_or_update_train_run=append, create_or_update_train_run_attempt=append)
        state_actor.get_or_create_state_actor = lambda: actor  # type: ignore[attr-defined]
        ray.__version__, ray.get, ray.get_actor = "2.60", lambda said, timeout: said, self._supervisor  # type: ignore[attr-defined]
        for name, module in {PRIVATE: state, f"{PRIVATE}.state_actor": state_actor, "ray": ray}.items():
            monkeypatch.setitem(sys.modules, name, module)

    def _made(self, **fields: Any) -> Any:
        status = SimpleNamespace(is_terminal=lambda: fields["status"] == "FINISHED")
        return SimpleNamespace(**{**fields, "status": status})

    def _supervisor(self, name: str, namespace: str) -> Any:
        assert name == "_ray_internal_job_actor_x-j-1-2" and namespace == "SUPERVISOR_ACTOR_RAY_NAMESPACE"
        return SimpleNamespace(_actor_id=bytes([7]))


def test_a_scribe_tells_rays_state_actor_and_names_the_actor_that_ends_with_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, shown = FakeRay(monkeypatch), Shown(SPEC, "j-1", 2)
    trains(shown, "w1")
    Scribe().show("x-j-1-2", shown.run(), shown.attempt())
    run, attempt = fake.told
    assert (run.name, run.controller_actor_id) == ("digits-j-1-2", "07") and attempt.run_id == run.id
    assert run.framework_versions.keys() == {"elastrain", "ray"}


def test_a_scribe_on_a_ray_without_that_api_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is what the driver's line of the log ends with."""
    monkeypatch.setitem(sys.modules, PRIVATE, None)
    with pytest.raises(ImportError, match=PRIVATE):
        Scribe()

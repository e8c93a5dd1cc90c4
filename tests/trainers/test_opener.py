"""Opening a generation from a checkpoint, while storage takes its time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from elastrain.trainers.coordination import opener as module
from elastrain.trainers.coordination.opener import Opener
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.balance import Pace
from elastrain.trainers.membership.machine import Phase
from elastrain.trainers.membership.messages import Event, Json
from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.spec import Source, parse_spec
from elastrain.trainers.spec.source import MODEL_ONLY, NoSource
from elastrain.trainers.storage import StorageError
from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.orders import Repetition
from trainers.stage import Stage

WAIT_S = 10.0


class Checkpoints:
    """`newest` does as a test says, in a thread, as storage does."""

    job = "j1"
    spec = parse_spec({"name": "x", "task": "a:B", "steps": 50, "resume_from": "another@7"})

    def __init__(self) -> None:
        self.answers: list[int | StorageError] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Event()
        self.aside: list[int] = []
        self.discarded: list[int] = []
        self.said: list[Json] = []
        self.other: str | None = None  # what has changed of the data since
        self.repetition: Repetition | None = None

    def newest(self) -> tuple[str, Json] | None:
        self.asked.set()
        assert self.may_answer.wait(WAIT_S)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, StorageError):
            raise answer
        return "folder", {
            "job": self.job,
            "attempt": 1,
            "step": answer,
            "cursor": Cursor(step=answer, updates=answer).to_json(),
        }

    def own(self, manifest: Json) -> bool:
        return bool(manifest["job"] == self.job)

    def set_aside(self, step: int, why: str) -> None:
        assert self.may_answer.wait(WAIT_S)
        self.aside.append(step)

    def discard_after(self, step: int, why: str) -> None:
        self.discarded.append(step)

    def changed(self, manifest: Json) -> str | None:
        return self.other

    def emit(self, fact: Json) -> None:
        self.said.append(fact)


class Coordinator:
    def __init__(self) -> None:
        self.addresses: dict[str, Json] = {"w0": {}, "w1": {}}
        self.told: asyncio.Queue[Json] = asyncio.Queue()

    def tell(self, workers: Any, message: Json) -> None:
        self.told.put_nowait(message)


class Tally:
    pace = Pace()

    def __init__(self) -> None:
        self.cursor = Cursor()
        self.warned: list[str] = []

    def warn(self, message: str) -> None:
        self.warned.append(message)

    def restored(self, cursor: Cursor) -> None:
        self.cursor = cursor


class Scene:
    def __init__(self, *answers: int | StorageError) -> None:
        self.stage = Stage(2)
        self.checkpoints, self.coordinator = Checkpoints(), Coordinator()
        self.checkpoints.answers = list(answers)
        self.fed: list[Event] = []
        self.given_up: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.stage.arrive("w0", "w1")
        self.stage.seal().arrive()
        self.tally = Tally()
        self.discarded_when_settled: list[int] | None = None
        parts: Any = (self.stage.machine, self.coordinator, self.checkpoints, self.tally)
        give_up = lambda *why: self.given_up.put_nowait(why)  # noqa: E731
        self.opener = Opener(*parts, self.fed.append, give_up, self._settled)

    async def _settled(self) -> None:
        self.discarded_when_settled = self.checkpoints.discarded.copy()

    def opening(self, rewind: m.Rewind | None = None) -> m.Open:
        machine = self.stage.machine
        machine.phase = Phase.FORMING
        return m.Open(machine.generation.number, machine.members, 0, restore=True, rewind=rewind)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), WAIT_S))  # type: ignore[arg-type]


def test_a_store_that_is_slow_does_not_hold_up_the_coordinator() -> None:
    async def scene() -> None:
        it = Scene(7)
        it.checkpoints.may_answer.clear()
        it.opener.open(it.opening())
        await asyncio.to_thread(it.checkpoints.asked.wait, WAIT_S)
        assert it.coordinator.told.empty() and it.fed == [], "and the loop runs"
        it.checkpoints.may_answer.set()
        told = await it.coordinator.told.get()
        assert (told["step"], told["restore"]["prefix"]) == (7, "folder")
        assert it.fed == [m.Restored(7)]

    play(scene)


def test_a_store_that_is_away_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)

    async def scene() -> None:
        it = Scene(StorageError("unavailable", "away"), StorageError("unavailable", "away"), 7)
        it.opener.open(it.opening())
        assert (await it.coordinator.told.get())["step"] == 7

    play(scene)


def test_a_store_that_stays_away_ends_the_attempt_and_not_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)

    async def scene() -> None:
        it = Scene(StorageError("unavailable", "no route"))
        it.opener.open(it.opening())
        why, by = await it.given_up.get()
        assert "no route" in why and by == "infrastructure"
        assert it.fed == []

    play(scene)


def test_an_error_that_nobody_thought_of_ends_the_attempt_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        it = Scene(7)
        monkeypatch.setattr(it.checkpoints, "newest", lambda: ("folder", {"attempt": 1}))
        it.opener.open(it.opening())
        why, by = await it.given_up.get()
        assert "KeyError: 'cursor'" in why and by == "service"

    play(scene)


def test_a_job_that_has_nothing_to_begin_from_is_failed_as_its_users_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        it = Scene(7)

        def nothing() -> None:
            raise NoSource("resume_from j-1@7: checkpoint 7 cannot be used")

        monkeypatch.setattr(it.checkpoints, "newest", nothing)
        it.opener.open(it.opening())
        why, by = await it.given_up.get()
        assert "resume_from j-1@7" in why and by == "user"
        assert it.coordinator.told.empty()

    play(scene)


def test_another_jobs_checkpoint_is_where_to_begin_and_is_not_saved_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        it = Scene(7)
        it.checkpoints.job = "another"
        found = it.checkpoints.newest()
        it.checkpoints.job = "j1"
        monkeypatch.setattr(it.checkpoints, "newest", lambda: found)
        it.opener.open(it.opening())
        assert (await it.coordinator.told.get())["step"] == 7
        assert it.fed == [m.Restored(7, own=False)]

    play(scene)


def test_of_another_jobs_checkpoint_the_model_alone_is_loaded_and_the_job_is_warned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        it = Scene(7)
        it.checkpoints.job = "another"
        prefix, manifest = it.checkpoints.newest() or ("", {})
        it.checkpoints.job = "j1"
        offered = {**manifest, "cursor": Cursor().to_json(), MODEL_ONLY: "seed is 1 and was 0"}
        monkeypatch.setattr(it.checkpoints, "newest", lambda: (prefix, offered))
        it.opener.open(it.opening())
        told = await it.coordinator.told.get()
        assert (told["step"], told["restore"]["manifest"]) == (0, offered)
        assert it.fed == [m.Restored(0, own=False)]
        (warned,), (said,) = it.tally.warned, it.checkpoints.said
        assert "another@7: seed is 1 and was 0" in warned and "only the model is taken" in warned
        assert said["data"] == {"step": 7, "job": "another", "model_only": True}
        assert said["message"] == "the model of checkpoint 7 of job another is loaded, and nothing else of it"

    play(scene)


def test_a_data_set_that_has_grown_since_the_jobs_own_checkpoint_is_warned_of() -> None:
    async def scene() -> None:
        it = Scene(7)
        it.checkpoints.other = "dataset length is 9 and was 8"
        it.opener.open(it.opening())
        assert (await it.coordinator.told.get())["step"] == 7
        (warned,) = it.tally.warned
        assert "dataset length is 9 and was 8" in warned and "checkpoint 7" in warned

    play(scene)


def test_who_was_to_load_when_the_generation_ended_is_told_of_it_so_that_it_can_report() -> None:
    async def scene() -> None:
        it = Scene(7)
        action = it.opening()
        it.stage.machine.phase = Phase.COLLECTING
        it.opener.open(action)
        assert (await it.coordinator.told.get())["generation"] == action.generation
        assert it.fed == [], "what the machine knows of steps is left alone"

    play(scene)


def test_a_bad_checkpoint_is_set_aside_before_the_next_one_is_looked_for() -> None:
    async def scene() -> None:
        it = Scene(7)
        it.checkpoints.may_answer.clear()
        it.opener.set_aside(9, "short")
        it.opener.open(it.opening())
        it.checkpoints.may_answer.set()
        await it.coordinator.told.get()
        assert it.checkpoints.aside == [9]

    play(scene)


def test_training_went_wrong_and_what_was_saved_since_then_is_discarded_once_it_is_written() -> None:
    async def scene() -> None:
        it = Scene(20)
        it.opener.open(it.opening(m.Rewind(24, 1, "NaN")))
        told = await it.coordinator.told.get()
        assert it.checkpoints.discarded == [24] and it.discarded_when_settled == []
        assert (told["step"], told["restore"]["rollbacks"]) == (20, 1)

    play(scene)


def test_a_repetition_went_wrong_and_is_failed_instead_of_going_on_at_a_lower_rate() -> None:
    """It began anew at half the rate, and succeeded with other bits than the run that it repeated."""

    async def scene() -> None:
        it = Scene(0)
        it.checkpoints.repetition = Repetition(Source("j", 40), [Task(n, n) for n in range(40)])
        it.opener.open(it.opening(m.Rewind(24, 1, "the loss of step 12 is not finite")))
        why, by = await it.given_up.get()
        assert (
            why.startswith("strategy.replay j@40: the loss of step 12 is not finite: but there is")
            and by == "user"
        )
        it.checkpoints.answers = [40]  # past the order it is as any other job
        it.opener.open(it.opening(m.Rewind(44, 1, "NaN")))
        assert (await it.coordinator.told.get())["restore"]["rollbacks"] == 1

    play(scene)


def test_workers_were_lost_after_a_rollback_and_the_rate_stays_low_though_the_checkpoint_is_older() -> None:
    async def scene() -> None:
        it = Scene(20)
        it.opener.open(it.opening(m.Rewind(24, 2, "NaN")))
        await it.coordinator.told.get()
        it.opener.open(it.opening())
        assert (await it.coordinator.told.get())["restore"]["rollbacks"] == 2
        assert it.checkpoints.discarded == [24], "nothing more"

    play(scene)

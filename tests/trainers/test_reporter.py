"""The driver's line when the service is away, slow, restarted, or no longer ours."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from elastrain.trainers.reporting import reporter as module
from elastrain.trainers.reporting import retrying
from elastrain.trainers.reporting import spool as spool_module
from elastrain.trainers.reporting.fact_buffer import Buffer, encode
from elastrain.trainers.reporting.reporter import Reporter
from elastrain.trainers.reporting.spool import Spool
from elastrain.trainers.reporting.whereabouts import look_up, tell
from elastrain.trainers.storage import Storage, StorageError, open_storage
from waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Service:
    """The service's side of the line: takes each number once, and can be told to fail."""

    def __init__(self) -> None:
        self.facts: list[dict[str, Any]] = []
        self.answers: list[int | Exception] = []  # what to do with the next posts, before it takes them
        self.refuse: Callable[[dict[str, Any]], bool] = lambda fact: False
        self.lose_next_reply = False
        self.desired: dict[str, Any] = {"version": 1, "desired": "run"}
        self.gone = False
        self.polls = 0

    async def handle(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer secret"
        if self.gone:
            return httpx.Response(410)
        if request.url.path == "/v1/driver/desired":
            self.polls += 1
            version = int(request.url.params["version"])
            while self.desired["version"] == version and not self.gone:
                await asyncio.sleep(0.01)
            return httpx.Response(410) if self.gone else httpx.Response(200, json=self.desired)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return httpx.Response(answer)
        body = json.loads(request.content)
        assert body["attempt"] == 3
        if any(map(self.refuse, body["facts"])):
            return httpx.Response(422)
        for seq, fact in enumerate(body["facts"], body["first_seq"]):
            if seq == len(self.facts) + 1:
                self.facts.append(fact)
            assert seq <= len(self.facts), "a number was left out"
        if self.lose_next_reply:
            self.lose_next_reply = False
            raise httpx.ReadError("the answer was lost")
        return httpx.Response(200, json={"acked_seq": len(self.facts)})


class Driver:
    def __init__(self, service: Service, storage: Storage | None = None, **more: Any) -> None:
        self.desired: list[Any] = []
        self.superseded = 0
        self.reporter = Reporter(
            "http://service",
            "secret",
            3,
            on_desired=lambda d: self.desired.append(d["desired"]),
            on_superseded=self._superseded,
            spool=Spool(storage, "j1", 3) if storage is not None else None,
            transport=httpx.MockTransport(service.handle),
            **more,
        )

    def _superseded(self) -> None:
        self.superseded += 1


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(retrying, "LAST_RETRY_S", 0.01)
    monkeypatch.setattr(module, "LINGER_S", 0.01)
    for name in ("SPOOL_AFTER_S", "SPOOL_EVERY_S", "SEARCH_EVERY_S"):
        monkeypatch.setattr(module, name, 0.0)


def metric(step: int, loss: float = 0.5) -> dict[str, Any]:
    return {"kind": "metric", "step": step, "values": {"loss": loss}}


def steps(service: Service) -> list[int]:
    return [fact["step"] for fact in service.facts if fact["kind"] == "metric"]


async def test_a_burst_of_facts_arrives_whole_and_in_order() -> None:
    service = Service()
    driver = Driver(service)
    driver.reporter.start(1)
    for step in range(5000):
        driver.reporter.add(metric(step))
    assert await driver.reporter.close(10) == 0
    assert steps(service) == list(range(5000))


async def test_a_service_that_is_away_gets_everything_when_it_is_back() -> None:
    service = Service()
    service.answers = [httpx.ConnectError("refused"), 503, 500, httpx.ReadTimeout("slow"), 502, 429]
    driver = Driver(service)
    driver.reporter.start(1)
    for step in range(10):
        driver.reporter.add(metric(step))
        await asyncio.sleep(0.003)
    assert await driver.reporter.close(10) == 0
    assert steps(service) == list(range(10))


async def test_a_lost_answer_makes_no_fact_count_twice() -> None:
    service = Service()
    service.lose_next_reply = True
    driver = Driver(service)
    driver.reporter.start(1)
    driver.reporter.add(metric(1))
    driver.reporter.add(metric(2))
    await until(lambda: steps(service) == [1, 2])
    driver.reporter.add(metric(3))
    assert await driver.reporter.close(10) == 0
    assert steps(service) == [1, 2, 3]


async def test_one_fact_that_the_service_refuses_does_not_hold_up_the_others() -> None:
    service = Service()
    service.refuse = lambda fact: fact.get("step") == 5
    driver = Driver(service)
    driver.reporter.start(1)
    for step in range(10):
        driver.reporter.add(metric(step))
    assert await driver.reporter.close(10) == 0
    assert steps(service) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


async def test_a_service_that_never_comes_back_costs_only_the_time_that_was_given() -> None:
    service = Service()
    service.answers = [503] * 100_000
    driver = Driver(service)
    driver.reporter.start(1)
    driver.reporter.add(metric(1))
    driver.reporter.add({"kind": "outcome", "outcome": "succeeded"})
    assert await driver.reporter.close(0.1) == 2


@pytest.mark.parametrize("speaks", [True, False])
async def test_a_superseded_attempt_learns_it_from_either_side_of_the_line(speaks: bool) -> None:
    service = Service()
    service.gone = True
    driver = Driver(service)
    driver.reporter.start(1)
    if speaks:
        driver.reporter.add(metric(1))
    await until(lambda: driver.superseded)
    assert await driver.reporter.close(10) == 0


async def test_a_change_of_the_desired_state_arrives_once() -> None:
    service = Service()
    driver = Driver(service)
    driver.reporter.start(1)
    await until(lambda: service.polls)
    assert driver.desired == []
    for version, wanted in ((2, "pause"), (3, "cancel")):
        service.desired = {"version": version, "desired": wanted}
        await until(lambda number=version: service.polls >= number)  # it asks for what comes after this one
    await driver.reporter.close(1)
    assert driver.desired == ["pause", "cancel"]


# -- the spool


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path.as_uri())


def spooled(storage: Storage) -> list[dict[str, Any]]:
    """Everything in the spool, by number."""
    found: dict[int, dict[str, Any]] = {}
    for entry in storage.list("jobs/j1/attempts/3/spool"):
        segment = json.loads(storage.get(entry.key))
        found |= dict(enumerate(segment["facts"], segment["first_seq"]))
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[number] for number in sorted(found)]


async def test_what_a_killed_driver_could_not_tell_lies_in_the_spool(storage: Storage) -> None:
    service = Service()
    driver = Driver(service, storage)
    driver.reporter.start(1)
    driver.reporter.add(metric(0))
    await until(lambda: len(service.facts) == 1)
    service.answers = [503] * 10**6
    for step in range(1, 50):
        driver.reporter.add(metric(step))
        await asyncio.sleep(0.002)
    await until(lambda: driver.reporter.unkept == 0)
    assert driver.reporter.unsent == 49
    kept = [json.loads(storage.get(e.key)) for e in storage.list("jobs/j1/attempts/3/spool")]
    assert kept[0]["first_seq"] == 2  # the first one was acknowledged
    assert [fact["step"] for segment in kept for fact in segment["facts"]] == list(range(1, 50))
    await driver.reporter.close(0)


async def test_a_service_that_comes_back_gets_the_spool_in_order_and_it_is_empty_then(
    storage: Storage,
) -> None:
    service = Service()
    service.answers = [503] * 60
    driver = Driver(service, storage)
    driver.reporter.start(1)
    for step in range(200):
        driver.reporter.add(metric(step))
        await asyncio.sleep(0.002)
    assert await driver.reporter.close(20) == 0
    assert steps(service) == list(range(200))
    assert storage.list("jobs/j1") == []


async def test_a_driver_that_ends_while_the_service_is_away_leaves_everything_in_the_spool(
    storage: Storage,
) -> None:
    service = Service()
    service.answers = [503] * 10**6
    driver = Driver(service, storage)
    driver.reporter.start(1)
    for step in range(20):
        driver.reporter.add(metric(step))
    driver.reporter.add({"kind": "outcome", "outcome": "succeeded"})
    assert await driver.reporter.close(0.05) == 21
    assert driver.reporter.unkept == 0
    assert [fact.get("step", "end") for fact in spooled(storage)] == [*range(20), "end"]


async def test_storage_that_is_away_as_well_costs_no_fact_and_no_order(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, tries = storage.put, iter(range(10**6))

    def flaky(key: str, data: bytes | Path, *, create_only: bool = True) -> None:
        put(key, data, create_only=create_only)
        if next(tries) % 3:
            raise StorageError("unavailable", "the answer was lost")

    monkeypatch.setattr(storage, "put", flaky)
    service = Service()
    service.answers = [503] * 40
    driver = Driver(service, storage)
    driver.reporter.start(1)
    for step in range(100):
        driver.reporter.add(metric(step))
        await asyncio.sleep(0.002)
    assert await driver.reporter.close(20) == 0
    assert steps(service) == list(range(100))


async def test_a_full_spool_leaves_metrics_out_and_events_in(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "SPOOL_BYTES", 2000)
    service = Service()
    service.answers = [503] * 10**6
    driver = Driver(service, storage)
    driver.reporter.start(1)
    for step in range(300):
        driver.reporter.add(metric(step))
        driver.reporter.add({"kind": "event", "type": "x", "message": "", "data": {"n": step}})
        await asyncio.sleep(0.001)
    await driver.reporter.close(0)
    kept = spooled(storage)
    assert [fact["data"]["n"] for fact in kept if fact["kind"] == "event"] == list(range(300))
    metrics = [fact["step"] for fact in kept if fact["kind"] == "metric"]
    assert len(metrics) < 290 and metrics[-1] == 299


async def test_a_service_that_moved_is_found_by_what_it_left_in_storage(storage: Storage) -> None:
    service, refused = Service(), list[str]()

    async def moved(request: httpx.Request) -> httpx.Response:
        if request.url.host == "old":
            refused.append(request.url.path)
            raise httpx.ConnectError("refused")
        return await service.handle(request)

    reporter = Reporter(
        "http://old",
        "secret",
        3,
        on_desired=lambda _: None,
        on_superseded=lambda: None,
        find_service=lambda: look_up(storage, "j1"),
        transport=httpx.MockTransport(moved),
    )
    reporter.start(1)
    reporter.add(metric(1))
    await until(lambda: len(refused) > 3)
    assert service.facts == []
    tell(storage, "j1", "http://new:8000")
    assert await reporter.close(20) == 0
    assert steps(service) == [1]


async def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture, storage: Storage
) -> None:
    caplog.set_level(logging.INFO)
    service = Service()
    service.answers = [503] * 50
    driver = Driver(service, storage)
    driver.reporter.start(1)
    driver.reporter.add(metric(1))
    assert await driver.reporter.close(20) == 0
    ours = [r.getMessage() for r in caplog.records if r.name == module.__name__]
    assert [line[:20] for line in ours] == ["the service answered", "the service takes fa"]


def test_what_is_kept_for_a_lost_service_stays_small_and_holds_every_event() -> None:
    buffer = Buffer(limit_bytes=100_000)
    for step in range(50_000):
        buffer.add(metric(step))
        if step % 1000 == 0:
            buffer.add({"kind": "event", "type": "checkpoint.saved", "data": {"step": step}})
            buffer.add({"kind": "progress", "step": step})
            buffer.add({"kind": "metric", "step": step, "values": {"val_loss": 1.0}})
    facts = []
    while batch := buffer.take():
        facts += [json.loads(fact.body) for fact in batch]
    assert sum(len(encode(fact)) for fact in facts) <= 100_000
    assert [f["data"]["step"] for f in facts if f["kind"] == "event"] == list(range(0, 50_000, 1000))
    evaluated = [f["step"] for f in facts if "val_loss" in f.get("values", {})]
    assert evaluated == list(range(0, 50_000, 1000))
    kept = [f["step"] for f in facts if "loss" in f.get("values", {})]
    gaps = [b - a for a, b in pairwise(kept)]
    assert kept == sorted(kept) and kept[-1] == 49_999 and kept[0] <= max(gaps) < 1000
    assert [f["step"] for f in facts if f["kind"] == "progress"][-1] == 49_000


def test_numbers_that_json_does_not_know_travel_as_words() -> None:
    assert json.loads(encode({"a": float("nan"), "b": [float("inf"), -float("inf"), 1.5]})) == {
        "a": "NaN",
        "b": ["Infinity", "-Infinity", 1.5],
    }
    with pytest.raises(TypeError):
        encode({"a": object()})


def test_a_fact_is_kept_as_it_was_when_it_happened() -> None:
    buffer = Buffer()
    fact = metric(1)
    buffer.add(fact)
    fact["step"] = 2
    assert json.loads(buffer.take()[0].body)["step"] == 1

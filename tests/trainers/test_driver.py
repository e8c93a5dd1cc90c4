"""The driver when it is refused, told to stop, fenced off, or when service and storage fail it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from elastrain.trainers import driver as module
from elastrain.trainers.coordination.attempt import Outcome
from elastrain.trainers.driver import Driver
from elastrain.trainers.reporting import retrying
from elastrain.trainers.reporting.claim import Claim, Refused, Ticket, Unanswered, claim
from elastrain.trainers.storage import Storage, StorageError, open_storage
from waiting import until

TICKET = Ticket("http://service", "j1", 2, "one-time")
DESIRED = {
    "version": 1,
    "desired": "run",
    "workers": {"min": 1, "max": 4, "target": 2},
    "checkpoint_no": 0,
}
SPEC = {"task": "tasks:T", "batch": {"size": 8, "microbatch": 2}, "epochs": 1, "name": "x"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "FIRST_RETRY_S", 0.001)


# -- the claim


def answers(*replies: httpx.Response | Exception) -> tuple[httpx.MockTransport, list[dict[str, Any]]]:
    asked: list[dict[str, Any]] = []
    left = list(replies)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        reply = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    return httpx.MockTransport(answer), asked


GRANTED = {
    "protocol": 1,
    "token": "t",
    "job": "j1",
    "attempt": 2,
    "spec": SPEC,
    "secrets": {"KEY": "v"},
    "env": {},
    "storage_url": "memory://",
    "storage_options": {},
    "package": None,
    "desired": DESIRED,
}


def test_a_claim_whose_answer_was_lost_is_repeated_with_the_same_nonce() -> None:
    transport, asked = answers(
        httpx.ConnectError("refused"),
        httpx.Response(503),
        httpx.ReadTimeout("lost"),
        httpx.Response(200, json=GRANTED),
    )
    granted = claim(TICKET, transport=transport)
    assert granted.secrets == {"KEY": "v"} and granted.desired == DESIRED
    assert len(asked) == 4 and len({body["nonce"] for body in asked}) == 1
    assert asked[0]["code"] == "one-time" and asked[0]["job"] == "j1" and asked[0]["attempt"] == 2


def test_a_refused_driver_hears_why() -> None:
    transport, asked = answers(httpx.Response(403, json={"detail": "attempt 2 was cancelled"}))
    with pytest.raises(Refused, match="attempt 2 was cancelled"):
        claim(TICKET, transport=transport)
    assert len(asked) == 1


def test_a_service_that_never_answers_is_given_up() -> None:
    transport, _ = answers(httpx.ConnectError("refused"))
    with pytest.raises(Unanswered):
        claim(TICKET, transport=transport, give_up_s=0.05)


def test_a_service_that_speaks_another_protocol_is_refused() -> None:
    transport, _ = answers(httpx.Response(200, json={**GRANTED, "protocol": 7}))
    with pytest.raises(Refused, match="protocol 7"):
        claim(TICKET, transport=transport)


def test_a_driver_that_nobody_started_exits_and_starts_nothing() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ELASTRAIN_")}
    ran = subprocess.run(
        [sys.executable, "-m", "elastrain.trainers.driver"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0
    assert "drivers are started by the service" in ran.stderr


def test_the_drivers_process_has_no_torch_and_no_ray_before_its_claim() -> None:
    program = (
        "import sys; import elastrain.trainers.driver;"
        "print(sorted({'torch', 'ray', 'pandas', 'fastapi', 'sqlalchemy'} & set(sys.modules)));"
        "import elastrain.trainers.launching.ray_launcher;"
        "print('torch' in sys.modules, 'ray.train' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split("\n")[:2] == ["[]", "False False"]


# -- the granted attempt


class FakeAttempt:
    """Runs until it is told to finish, or as long as its script says; notes its orders."""

    now: FakeAttempt
    running = False
    script: Outcome | Exception | None = None
    receipt: Any = "what its launcher says"

    def __init__(self, **given: Any) -> None:
        FakeAttempt.now = self
        self.given = given
        self.orders: list[Any] = []
        self.finished: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def run(self) -> Outcome:
        self.given["sink"]({"kind": "event", "type": "x", "message": "", "data": {}})
        FakeAttempt.running = True
        if isinstance(self.script, Exception):
            raise self.script
        return self.script or await self.finished

    def scale(self, minimum: int, target: int) -> None:
        self.orders.append(("scale", minimum, target))

    def checkpoint(self, number: int) -> None:
        self.orders.append(("checkpoint", number))

    def finish(self, why: Any, message: str | None = None) -> None:
        self.orders.append(why)
        if not self.finished.done():
            self.finished.set_result(Outcome(why, 7, None, message))


class FakeReporter:
    now: FakeReporter

    def __init__(
        self, url: str, token: str, attempt: int, *, on_desired: Any, on_superseded: Any, **_: Any
    ) -> None:
        FakeReporter.now = self
        self.on_desired, self.on_superseded = on_desired, on_superseded
        self.facts: list[Mapping[str, Any]] = []
        self.closed_within: float | None = None
        self.unkept = 0

    def start(self, desired_version: int) -> None: ...

    def add(self, fact: Mapping[str, Any]) -> None:
        self.facts.append(fact)

    async def close(self, timeout_s: float) -> int:
        self.closed_within = timeout_s
        return 0


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(f"file://{tmp_path}/store")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, storage: Storage, tmp_path: Path) -> Driver:
    monkeypatch.setattr(module, "Attempt", FakeAttempt)
    monkeypatch.setattr(module, "Reporter", FakeReporter)
    monkeypatch.setattr(FakeAttempt, "script", None)
    monkeypatch.setattr(FakeAttempt, "running", False)
    (tmp_path / "driver.log").write_bytes(b"hello\n")
    granted = Claim("t", SPEC, storage.url, DESIRED, env={"A": "1"}, secrets={"B": "2"})
    return Driver(TICKET, granted, storage, tmp_path / "driver.log")


def outcome(storage: Storage) -> Any:
    return json.loads(storage.get("jobs/j1/attempts/2/outcome.json"))


async def run(driver: Driver) -> Outcome:
    return await driver.run(lambda spec, said: None, "10.0.0.1")  # type: ignore[arg-type, return-value]


async def started(driver: Driver) -> asyncio.Future[Outcome]:
    """The driver's run, as soon as the attempt is under way in it."""
    running = asyncio.ensure_future(run(driver))
    await until(lambda: FakeAttempt.running or running.done())
    return running


@pytest.mark.anyio
async def test_an_attempt_is_claimed_runs_and_leaves_its_outcome(driver: Driver, storage: Storage) -> None:
    FakeAttempt.script = Outcome("failed", 12, "user", "NameError: x")
    await run(driver)
    given = FakeAttempt.now.given
    assert given["host"] == "10.0.0.1" and given["workers"] == (1, 2)
    assert given["welcome"]["env"] == {"A": "1", "B": "2"}
    storage.size("jobs/j1/attempts/2/claim.json")
    assert outcome(storage) == {
        "outcome": "failed",
        "step": 12,
        "failed_by": "user",
        "message": "NameError: x",
        "receipt": FakeAttempt.receipt,
    }
    kinds = [fact["kind"] for fact in FakeReporter.now.facts if fact["kind"] != "log"]
    assert kinds == ["event", "outcome"]
    assert storage.get("jobs/j1/logs/2/driver/000000000000") == b"hello\n"


@pytest.mark.anyio
async def test_the_service_scales_asks_for_a_checkpoint_and_pauses(driver: Driver) -> None:
    running = await started(driver)
    tell = FakeReporter.now.on_desired
    workers = {"min": 2, "max": 4, "target": 3}
    tell({**DESIRED, "version": 2, "workers": workers})
    tell({**DESIRED, "version": 3, "workers": workers, "checkpoint_no": 1})
    tell({**DESIRED, "version": 4, "workers": workers, "checkpoint_no": 1, "desired": "pause"})
    assert (await running).outcome == "paused"
    assert FakeAttempt.now.orders == [("scale", 2, 3), ("checkpoint", 1), "paused"]


@pytest.mark.anyio
@pytest.mark.parametrize(("done", "orders"), [({}, []), ({"checkpoint_done": 1}, [("checkpoint", 3)])])
async def test_a_request_for_a_checkpoint_that_the_attempt_before_left_open_is_taken_over(
    driver: Driver, done: dict[str, int], orders: list[Any]
) -> None:
    desired = {**DESIRED, "checkpoint_no": 3, **done}
    driver = Driver(
        TICKET, dataclasses.replace(driver._claim, desired=desired), driver._storage, driver._log_file
    )
    running = await started(driver)
    FakeReporter.now.on_desired({**desired, "version": 2})
    assert FakeAttempt.now.orders == orders
    FakeReporter.now.on_desired({**desired, "version": 3, "desired": "cancel"})
    await running


@pytest.mark.anyio
async def test_sigterm_ends_the_attempt_after_a_checkpoint_and_does_not_wait_for_the_service(
    driver: Driver, storage: Storage
) -> None:
    running = await started(driver)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (await running).outcome == "preempted"
    assert outcome(storage)["outcome"] == "preempted"
    assert FakeReporter.now.closed_within is not None and FakeReporter.now.closed_within < 10


@pytest.mark.anyio
async def test_an_order_that_was_given_before_the_attempt_began_is_obeyed(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, storage: Storage
) -> None:
    put = storage.put

    def slow(key: str, data: bytes | Path, *, create_only: bool = True) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        put(key, data, create_only=create_only)

    monkeypatch.setattr(storage, "put", slow)
    assert (await asyncio.wait_for(run(driver), 10)).outcome == "preempted"


@pytest.mark.anyio
async def test_a_superseded_driver_stops_at_once(driver: Driver) -> None:
    running = await started(driver)
    FakeReporter.now.on_superseded()
    assert (await running).outcome == "cancelled"


@pytest.mark.anyio
async def test_a_driver_that_comes_after_a_later_attempt_starts_nothing(
    driver: Driver, storage: Storage
) -> None:
    storage.put("jobs/j1/attempts/3/claim.json", b"{}")
    FakeAttempt.script = AssertionError("was started")
    assert (await run(driver)).outcome == "cancelled"
    assert outcome(storage)["receipt"] == {"nodes": [], "unsearched": [], "seconds": 0.0}


@pytest.mark.anyio
async def test_a_second_driver_of_an_attempt_vouches_for_nothing_that_the_first_one_started(
    driver: Driver, storage: Storage
) -> None:
    storage.put("jobs/j1/attempts/2/claim.json", b"{}")
    assert "begun before" in str((await run(driver)).message)
    assert outcome(storage)["receipt"] is None


@pytest.mark.anyio
async def test_an_outcome_that_was_recorded_first_holds(driver: Driver, storage: Storage) -> None:
    storage.put("jobs/j1/attempts/2/outcome.json", b'{"outcome": "cancelled"}')
    FakeAttempt.script = Outcome("succeeded", 9)
    await run(driver)
    assert outcome(storage) == {"outcome": "cancelled"}


@pytest.mark.anyio
async def test_an_attempt_that_breaks_is_the_services_fault_and_says_where(
    driver: Driver, storage: Storage
) -> None:
    FakeAttempt.script = ZeroDivisionError("a bug of ours")
    await run(driver)
    found = outcome(storage)
    assert found["outcome"] == "failed" and found["failed_by"] == "service"
    assert "ZeroDivisionError: a bug of ours" in found["message"]


def away(
    monkeypatch: pytest.MonkeyPatch, storage: Storage, times: int, kind: str = "unavailable", why: str = "503"
) -> list[str]:
    """The store fails that many puts; -> the keys that were asked for."""
    put, asked = storage.put, list[str]()

    def failing(key: str, data: bytes | Path, *, create_only: bool = True) -> None:
        if "/logs/" not in key:
            asked.append(key)
            if len(asked) <= times:
                raise StorageError(kind, f"{why} ({len(asked) // 3})")
        put(key, data, create_only=create_only)

    monkeypatch.setattr(storage, "put", failing)
    monkeypatch.setattr(module, "STORAGE_AGAIN_S", 0.0)
    return asked


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["unavailable", "denied"])
async def test_a_storage_that_is_away_at_the_start_costs_no_attempt_and_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, storage: Storage, kind: str
) -> None:
    FakeAttempt.script = Outcome("succeeded", 9)
    asked = away(monkeypatch, storage, 7, kind)
    assert (await run(driver)).outcome == "succeeded"
    assert len(asked) > 7
    told = [f["message"] for f in FakeReporter.now.facts if f.get("type") == "storage.waiting"]
    assert len(told) == 3  # the trouble changed twice
    assert "503 (0)" in told[0] and "waiting for it" in told[0]


@pytest.mark.anyio
async def test_a_driver_that_waits_for_its_storage_hears_that_the_job_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, storage: Storage
) -> None:
    asked = away(monkeypatch, storage, 10**9)
    monkeypatch.setattr(module, "STORAGE_PATIENCE_S", 0.0)
    running = asyncio.ensure_future(run(driver))
    await until(lambda: len(asked) > 2)
    FakeReporter.now.on_desired({**DESIRED, "version": 2, "desired": "cancel"})
    assert (await asyncio.wait_for(running, 10)).outcome == "cancelled"


@pytest.mark.anyio
async def test_a_storage_that_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, storage: Storage
) -> None:
    def refuse(key: str, data: bytes | Path, *, create_only: bool = True) -> None:
        raise StorageError("missing_bucket", "the bucket 'b' does not exist")

    monkeypatch.setattr(storage, "put", refuse)
    monkeypatch.setattr(module, "STORAGE_PATIENCE_S", 0.0)
    found = await run(driver)
    assert found.failed_by == "infrastructure" and "the bucket 'b' does not exist" in str(found.message)
    assert FakeReporter.now.facts[-1]["message"] == found.message  # the service hears of it all the same

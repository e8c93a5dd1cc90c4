"""Hundreds of drivers post at once, and many submit: users are answered meanwhile."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from elastrain.api import writers as writing
from elastrain.api.app import create_app
from elastrain.api.writers import FACTS_AT_ONCE, SUBMITS_AT_ONCE, Writers
from elastrain.service.control import Control
from elastrain.service.errors import Unavailable

MANY = 60  # more than there are threads for requests


def at_once(control: Control, of_drivers: bool) -> int:
    """How many of them write."""
    return 1 if control.store.is_sqlite else FACTS_AT_ONCE if of_drivers else SUBMITS_AT_ONCE + FACTS_AT_ONCE


async def others_are_answered(http: httpx.AsyncClient, inside: list[str], writers: int) -> None:
    """While all writers are stuck and many wait behind them."""
    while len(inside) < writers:
        await asyncio.sleep(0)
    for path in ("/healthz?db=1", "/v1/jobs"):
        assert (await asyncio.wait_for(http.get(path), 20)).status_code == 200
    assert len(inside) == writers


def test_users_are_answered_while_many_submits_wait_for_the_store(
    control: Control, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inside = threading.Event(), list[str]()

    def stuck(spec: dict[str, Any], **_: Any) -> tuple[dict[str, Any], bool]:
        inside.append(spec["name"])
        gate.wait()
        return {"id": spec["name"]}, True

    monkeypatch.setattr(control, "submit", stuck)

    async def story() -> None:
        transport = httpx.ASGITransport(create_app(control))
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers) as http:
            posts = [
                asyncio.create_task(http.post("/v1/jobs", json={"name": f"job-{at}"})) for at in range(MANY)
            ]
            try:
                await others_are_answered(http, inside, at_once(control, of_drivers=False))
            finally:
                gate.set()
            assert {reply.status_code for reply in await asyncio.gather(*posts)} == {201}
        assert set(inside) == {f"job-{at}" for at in range(MANY)}

    asyncio.run(story())


def test_users_are_answered_while_every_driver_waits_for_the_store(
    control: Control, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inside = threading.Event(), list[str]()

    def stuck(token: str, body: dict[str, Any]) -> dict[str, Any]:
        inside.append(token)
        gate.wait()
        return {"acked_seq": 0, "desired_version": 1}

    monkeypatch.setattr(control, "driver_facts", stuck)
    monkeypatch.setattr(control, "driver_met", lambda token: True)

    async def story() -> None:
        transport = httpx.ASGITransport(create_app(control))
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers) as http:
            posts = [
                asyncio.create_task(http.post("/v1/driver/facts", json={"facts": []})) for _ in range(MANY)
            ]
            try:
                await others_are_answered(http, inside, at_once(control, of_drivers=True))
            finally:
                gate.set()
            assert {reply.status_code for reply in await asyncio.gather(*posts)} == {200}
        assert len(inside) == MANY

    asyncio.run(story())


def test_a_submit_stands_behind_one_batch_of_facts_and_not_behind_all_of_them() -> None:
    async def story() -> None:
        writers, gate, said = Writers(one_at_a_time=True), threading.Event(), list[str]()

        def first() -> None:
            gate.wait()
            said.append("facts")

        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(writers.facts(first))
            await asyncio.sleep(0)
            group.create_task(writers.submit(lambda: said.append("job")))
            for _ in range(10):
                await asyncio.sleep(0)
            gate.set()
        assert said.index("job") <= 1, said

    asyncio.run(story())


def test_who_stands_behind_a_stuck_writer_is_told_so_and_does_not_wait_for_each_before_him(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "PATIENCE_S", 0.01)

    async def story() -> None:
        writers, gate, inside = Writers(one_at_a_time=True), threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def stuck() -> str:
            loop.call_soon_threadsafe(inside.set)
            gate.wait()
            return "written"

        first = asyncio.create_task(writers.submit(stuck))
        await inside.wait()
        try:
            behind = [writers.submit(lambda: "job"), *(writers.facts(lambda: "facts") for _ in range(2))]
            refused = await asyncio.gather(*behind, return_exceptions=True)
            assert [type(error) for error in refused] == [Unavailable] * 3
        finally:
            gate.set()
        assert await first == "written"
        assert (
            await writers.facts(lambda: "facts") == "facts" and await writers.submit(lambda: "job") == "job"
        )

    asyncio.run(story())

"""Hundreds of drivers post at once: users are answered meanwhile."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from elastrain.api.app import FACTS_AT_ONCE, create_app
from elastrain.service.control import Control

DRIVERS = 60  # more than there are threads for requests


def test_users_are_answered_while_every_driver_waits_for_the_store(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inside = threading.Event(), list[str]()

    def stuck(token: str, body: dict[str, Any]) -> dict[str, Any]:
        inside.append(token)
        gate.wait()
        return {"acked_seq": 0, "desired_version": 1}

    monkeypatch.setattr(control, "driver_facts", stuck)

    async def story() -> None:
        transport = httpx.ASGITransport(create_app(control))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            headers = {"Authorization": "Bearer driver"}
            posts = [
                asyncio.create_task(http.post("/v1/driver/facts", json={"facts": []}, headers=headers))
                for _ in range(DRIVERS)
            ]
            try:
                while len(inside) < FACTS_AT_ONCE:
                    await asyncio.sleep(0)
                answer = await asyncio.wait_for(http.get("/healthz?db=1"), 20)
                assert answer.status_code == 200
                assert len(inside) == FACTS_AT_ONCE
            finally:
                gate.set()
            assert {reply.status_code for reply in await asyncio.gather(*posts)} == {200}
        assert len(inside) == DRIVERS

    asyncio.run(story())

"""A driver asks what is desired and waits for the answer."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from elastrain.api.app import create_app
from world import World


def test_a_waiting_driver_hears_of_a_change_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    id, driver = world.running()
    version = driver.desired()["version"]

    async def ask() -> Any:
        transport = httpx.ASGITransport(create_app(world.control))
        headers = {"Authorization": f"Bearer {driver.token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://service", headers=headers) as http:
            waits = {"version": version, "wait_s": 20}
            return (await http.get("/v1/driver/desired", params=waits, timeout=30)).json()

    threading.Timer(0.2, lambda: world.cancel(id)).start()
    begun = time.monotonic()
    answer = asyncio.run(ask())
    assert answer["desired"] == "cancel" and time.monotonic() - begun < 5
    world.store.close()

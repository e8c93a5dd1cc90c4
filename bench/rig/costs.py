"""What requests and rounds cost of the processor: one process, no sockets, nobody who waits for anybody.

python -m rig.costs TIMES [RUNNING QUEUED]       one JSON object on stdout, in ms of processor time each

The app is the service's own, called as a server calls it; clock, Ray and drivers are those of the tests.
Other programs make a latency worse at once, a processor time hardly: this is what to compare before and
after.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rig.arrivals import PAGES, spec
from rig.filling import fill_with

TESTS = Path(__file__).parents[2] / "tests"
PARTS = 10
PER_ROUND = 300  # submits between two rounds: those of three seconds
Json = dict[str, Any]


class Costs:
    def __init__(self, folder: Path, running: int, queued: int) -> None:
        sys.path.append(str(TESTS))
        from elastrain.api.app import create_app
        from world import RayNode, World

        self.world = world = World(folder, cpus=8.0)
        world.ray.cluster = [RayNode(f"n{at}", True, {"CPU": 8.0}, {}) for at in range(running // 2)]
        first = {"priority": 10, "workers": {"min": 4, "max": 4}}
        jobs = [world.control.submit({**spec(at), **first}, actor=_admin())[0] for at in range(running)]
        world.round()
        self.drivers = [world.driver(job["id"]) for job in jobs]
        for driver in self.drivers:
            driver.claim(nonce=driver.launch.submission_id)
            driver.post({"kind": "progress", "status": "running", "step": 0, "total_steps": 1000})
            driver.step(1, loss=1.0, lr=1e-3)
        fill_with(world.store, range(running, running + queued), world.clock.now() - running - queued)
        self.app = create_app(world.control)
        self.token = world.control.auth.ensure_admin_token(folder / "token")
        self.number = 1_000_000
        self.step = 1

    async def ask(self, method: str, path: str, body: Json | None = None, **headers: str) -> bytes:
        """The body of a successful answer."""
        path, _, query = path.partition("?")
        content = b"" if body is None else json.dumps(body).encode()
        given = {"host": "bench", "authorization": f"Bearer {self.token}", **headers}
        given |= {"content-type": "application/json", "content-length": str(len(content))} if body else {}
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
        scope |= {"raw_path": path.encode(), "root_path": "", "scheme": "http", "http_version": "1.1"}
        scope |= {"asgi": {"version": "3.0"}, "client": ("bench", 1), "server": ("bench", 80)}
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
        said: list[Json] = []

        async def receive() -> Json:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            said.append(message)

        await self.app({**scope, "headers": pairs}, receive, send)  # type: ignore[arg-type]
        assert said[0]["status"] in (200, 201), said
        return b"".join(message.get("body", b"") for message in said[1:])

    async def submit(self) -> None:
        self.number += 1
        await self.ask("POST", "/v1/jobs", spec(self.number), idempotency_key=f"k-{self.number}")

    async def facts(self) -> None:
        """What a driver says each second."""
        self.step += 1
        driver = self.drivers[self.step % len(self.drivers)]
        step = 1 + self.step // len(self.drivers)
        metrics = [
            {
                "kind": "metric",
                "step": 2 * step + more,
                "values": {"loss": 1 / step, "lr": 1e-3},
                "epoch_no": 0,
            }
            for more in range(2)
        ]
        progress = {"kind": "progress", "status": "running", "step": 2 * step, "total_steps": 1000}
        progress |= {"epoch": 0.5, "samples_per_s": 500.0, "eta_s": 100.0, "workers_active": 4}
        progress |= {"workers_target": 4, "workers_held": 4, "steps_skipped": 0, "workers_replaced": 0}
        body = {"attempt": 1, "first_seq": driver.seq, "facts": [*metrics, progress]}
        await self.ask("POST", "/v1/driver/facts", body, authorization=f"Bearer {driver.token}")
        driver.seq += 3

    async def page(self, number: int) -> None:
        await self.ask("GET", PAGES[number % len(PAGES)])

    async def me(self) -> None:
        await self.ask("GET", "/v1/me")

    def round(self) -> None:
        self.world.round(3.0)

    def moved(self) -> None:
        """A round in which one job ends and others are in the queue that were not there before."""
        driver = self.drivers.pop()
        driver.ends("succeeded")
        self.world.round(3.0)


def _admin() -> Any:
    from world import ADMIN

    return ADMIN


async def spent_ms(act: Callable[[], Awaitable[None]], times: int) -> float:
    """Of the whole process, each, in the quickest of ten parts: others who share the caches only add."""
    await act()
    each = max(1, times // PARTS)
    seen = []
    for _ in range(PARTS):
        began = time.process_time()
        for _ in range(each):
            await act()
        seen.append((time.process_time() - began) / each)
    return round(1e3 * min(seen), 3)


def round_ms(act: Callable[[], None], times: int) -> float:
    """The quickest."""
    seen = []
    for _ in range(times):
        began = time.process_time()
        act()
        seen.append(1e3 * (time.process_time() - began))
    return round(min(seen), 1)


async def submits_ms(costs: Costs, times: int) -> float:
    """With rounds between them, which are not counted."""
    parts = []
    for _ in range(max(1, times // PER_ROUND)):
        costs.round()
        parts.append(await spent_ms(costs.submit, min(times, PER_ROUND)))
    return min(parts)


async def measured(costs: Costs, times: int) -> Json:
    for _ in range(3):
        costs.round()
    found: Json = {"submit": await submits_ms(costs, times), "facts": await spent_ms(costs.facts, times)}
    numbers = iter(range(10 * times))
    found["page"] = await spent_ms(lambda: costs.page(next(numbers)), times // 3)
    found["me"] = await spent_ms(costs.me, times)
    costs.round()
    found["round_calm"] = round_ms(costs.round, 5)
    found["round_moved"] = round_ms(costs.moved, 5)
    return found


def main(times: int, running: int = 200, queued: int = 10_000) -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="costs-") as folder:
        costs = Costs(Path(folder), running, queued)
        print(json.dumps(asyncio.run(measured(costs, times))))
        costs.world.store.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

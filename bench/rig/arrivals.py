"""Requests that come when they are due, whether or not those before them have been answered.

    python -m rig.arrivals        one JSON object per line on stdin, one answer per line on stdout

An order is {url, token, rate, seconds, what}; the answer {latencies_s, statuses, late_s, lags_s}. Nobody
waits for the answers of others: if the service stands still for a second, everybody who came in that second
waits, and a client that waits for its answer before it asks again would not show it. A latency counts from
the moment at which the request was sent. late_s: how long after it was due that was, for each. lags_s: how
late this process's own event loop was, asked all the time: an answer may have lain there for as long.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from itertools import count
from typing import Any

import aiohttp
import uvloop

PROJECTS = 5
LOOK_EVERY_S = 0.005
SPEC: dict[str, Any] = {
    "task": "elastrain.trainers.tasks.digits:Digits",
    "optimizer": {"name": "adam", "lr": 0.001},
    "batch": {"size": 64, "microbatch": 8},
    "steps": 1000,
}
# pages that people look at
PAGES = (
    "/v1/jobs?limit=50",
    "/v1/jobs?limit=50&status=queued",
    "/v1/jobs?limit=50&status=running",
    "/v1/jobs?limit=50&project=team-2",
    "/v1/jobs?limit=50&label=sweep:s7",
)


def spec(number: int) -> dict[str, Any]:
    """The spec of the numbered job: sizes, projects, priorities and labels differ."""
    return {
        **SPEC,
        "name": f"job-{number}",
        "project": f"team-{number % PROJECTS}",
        "priority": number % 3,
        "labels": {"sweep": f"s{number % 50}"},
        "workers": {"min": 4, "max": 4 + 4 * (number % 2)},
    }


class Arrivals:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._numbers = count(1_000_000)

    async def run(self, order: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {order['token']}"}
        amount, every_s = int(order["rate"] * order["seconds"]), 1 / order["rate"]
        start, used_s = time.perf_counter() + 0.2, time.process_time()
        latencies: list[float] = []
        late_s: list[float] = []
        statuses: Counter[str] = Counter()

        async def one(number: int, due: float) -> None:
            began = time.perf_counter()
            late_s.append(began - due)
            try:
                statuses[str(await self._ask(order, number, headers))] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                statuses[type(error).__name__] += 1
            latencies.append(time.perf_counter() - began)

        lags_s: list[float] = []
        watching = asyncio.create_task(watch(lags_s))
        async with asyncio.TaskGroup() as group:
            for number in range(amount):
                due = start + number * every_s
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(one(number, due))
        watching.cancel()
        told = {"latencies_s": latencies, "statuses": dict(statuses), "late_s": late_s, "lags_s": lags_s}
        return {**told, "own_s": time.process_time() - used_s}

    async def _ask(self, order: dict[str, Any], number: int, headers: dict[str, str]) -> int:
        if order["what"] == "submit":
            job = next(self._numbers)
            key = {**headers, "Idempotency-Key": f"load-{order['run']}-{job}"}
            call = self._http.post(f"{order['url']}/v1/jobs", json=spec(job), headers=key)
        elif order["what"] == "list":
            call = self._http.get(order["url"] + PAGES[number % len(PAGES)], headers=headers)
        else:
            call = self._http.get(order["url"] + order["what"], headers=headers)
        async with call as reply:
            await reply.read()
            return reply.status


async def watch(lags_s: list[float]) -> None:
    """How late the event loop is, each time that it is asked."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(LOOK_EVERY_S)
        lags_s.append(time.perf_counter() - began - LOOK_EVERY_S)


async def main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4), timeout=timeout
    ) as http:
        arrivals = Arrivals(http)
        while text := await lines.readline():
            print(json.dumps(await arrivals.run(json.loads(text))), flush=True)


if __name__ == "__main__":
    uvloop.run(main())

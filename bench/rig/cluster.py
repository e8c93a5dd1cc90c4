"""A Ray that starts no processes, and the drivers that it would have started, all in one process.

    python -m rig.cluster NODES CPUS       its address is the first line on stdout

To the service it is Ray's Jobs and State API. A driver says what real ones say, in the same order: it claims
its attempt, reports that it runs, posts a batch of facts each second, and holds the call that waits for what
is desired of it. It computes nothing. GET /bench tells what they have seen; POST /bench/end lets so many
finish, `silent` ones without a word to a service that is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from elastrain.trainers.storage import open_storage

POST_EVERY_S = 1.0
RETRY_S = 1.0
STEPS = 2  # in each batch
ENDS = {"cancel": "cancelled", "pause": "paused", "preempt": "preempted"}
Json = dict[str, Any]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Driver:
    def __init__(self, cluster: Cluster, id: str, env: Json) -> None:
        self.cluster, self.id, self.env = cluster, id, env
        self.url, self.attempt = env["ELASTRAIN_DRIVER_URL"], int(env["ELASTRAIN_ATTEMPT_NUMBER"])
        self.step, self.seq, self.desired = 0, 1, {}
        self.over = asyncio.Event()
        self.silent = False

    async def live(self) -> None:
        try:
            await self._claim()
            self.cluster.claimed += 1
            await self._post({"kind": "event", "at": now(), "type": "attempt.began", "message": "It runs"})
            await self._post(self._progress("running"))
            polling = asyncio.create_task(self._poll())
            await asyncio.sleep(random.random() * POST_EVERY_S)
            while not self.over.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.over.wait(), POST_EVERY_S)
                if self.silent:
                    break
                await self._post(*(self._metric() for _ in range(STEPS)), self._progress("running"))
            polling.cancel()
            await self._end(ENDS.get(self.desired.get("desired", ""), "succeeded"))
        except aiohttp.ClientResponseError as error:
            self.cluster.troubles.append(repr(error)[:200])
            self.cluster.ended(self.id, "FAILED")

    async def _claim(self) -> None:
        body = {"protocol": 1, "job": self.env["ELASTRAIN_JOB"], "attempt": self.attempt}
        body |= {"code": self.env["ELASTRAIN_CLAIM"], "nonce": self.id}
        self.claim = await self._call("POST", "/v1/driver/claim", body, {})
        self.headers = {"Authorization": f"Bearer {self.claim['token']}"}
        self.desired = self.claim["desired"]

    async def _poll(self) -> None:
        while not self.over.is_set():
            query = f"/v1/driver/desired?version={self.desired['version']}&wait_s=30"
            self.desired = await self._call("GET", query, None, self.headers) or self.desired
            if self.desired["desired"] != "run":
                self.over.set()

    async def _post(self, *facts: Json) -> None:
        body = {"attempt": self.attempt, "first_seq": self.seq, "facts": list(facts)}
        began = time.perf_counter()
        await self._call("POST", "/v1/driver/facts", body, self.headers)
        self.cluster.took_s.append(time.perf_counter() - began)
        self.cluster.facts += len(facts)
        self.seq += len(facts)

    async def _call(self, method: str, path: str, body: Json | None, headers: Json) -> Json:
        """Until there is an answer, as real ones do, but for those whose end nobody waits for."""
        while True:
            try:
                async with self.cluster.http.request(
                    method, self.url + path, json=body, headers=headers
                ) as reply:
                    if reply.status < 500:
                        reply.raise_for_status()
                        found: Json = await reply.json()
                        return found
                    self.cluster.troubles.append(f"{reply.status} to {path}")
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                self.cluster.troubles.append(repr(error)[:200])
            await asyncio.sleep(RETRY_S)
            if self.silent:
                return {}

    async def _end(self, outcome: str) -> None:
        end = {"outcome": outcome, "step": self.step, "failed_by": None, "message": None}
        end["receipt"] = {"nodes": [], "unsearched": [], "seconds": 0.0}
        storage = open_storage(self.claim["storage_url"], self.claim["storage_options"])
        key = f"jobs/{self.env['ELASTRAIN_JOB']}/attempts/{self.attempt}/outcome.json"
        await asyncio.to_thread(storage.put, key, web.json_response(end).body)
        if not self.silent:
            await self._post({"kind": "outcome", "at": now(), **end})
        self.cluster.ended(self.id, "SUCCEEDED")

    def _metric(self) -> Json:
        self.step += 1
        values = {"loss": 1.0 / self.step, "grad_norm": 0.5, "workers": 4.0, "lr": 0.001}
        values["samples_per_s"] = 128.0
        return {"kind": "metric", "at": now(), "step": self.step, "epoch_no": 0, "values": values}

    def _progress(self, status: str) -> Json:
        counts = {"step": self.step, "total_steps": 1_000_000, "steps_skipped": 0, "workers_replaced": 0}
        rates = {"epoch": 0.0, "samples_per_s": 128.0, "eta_s": 1000.0, "workers_active": 4}
        return {"kind": "progress", "at": now(), "status": status, "reason": None, **counts, **rates}


class Cluster:
    def __init__(self, nodes: int, cpus: float, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.nodes = [
            {"node_id": f"n{at:03d}", "state": "ALIVE", "resources_total": {"CPU": cpus}}
            for at in range(nodes)
        ]
        self.jobs: dict[str, Json] = {}
        self.drivers: dict[str, tuple[Driver, asyncio.Task[None]]] = {}
        self.took_s: list[float] = []
        self.troubles: list[str] = []
        self.claimed = self.facts = self.finished = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/jobs/", self.list),
            web.get("/api/jobs/{id}", self.get),
            web.post("/api/jobs/", self.submit),
            web.post("/api/jobs/{id}/stop", self.stop),
            web.get("/bench", self.tell),
            web.post("/bench/end", self.end),
            web.get("/{path:.*}", self.other),
        ]

    def ended(self, id: str, status: str) -> None:
        self.finished += 1
        self.jobs[id]["status"] = status
        self.drivers.pop(id, None)

    async def list(self, _: web.Request) -> web.Response:
        return web.json_response(list(self.jobs.values()))

    async def get(self, request: web.Request) -> web.Response:
        found = self.jobs.get(request.match_info["id"])
        return web.json_response(found or {}, status=200 if found else 404)

    async def submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        id = body["submission_id"]
        if id in self.jobs:
            return web.Response(status=400, text=f"Job with submission_id {id} already exists")
        env = body["runtime_env"]["env_vars"]
        driving = "ELASTRAIN_CLAIM" in env  # else it is a search for what a driver has left: nothing
        self.jobs[id] = {"submission_id": id, "status": "RUNNING" if driving else "SUCCEEDED", "message": ""}
        if not driving:
            return web.json_response({"submission_id": id})
        driver = Driver(self, id, env)
        self.drivers[id] = (driver, asyncio.create_task(driver.live()))
        return web.json_response({"submission_id": id})

    async def stop(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        if id in self.drivers:
            self.drivers[id][1].cancel()
            self.ended(id, "STOPPED")
        return web.json_response({"stopped": True})

    async def tell(self, _: web.Request) -> web.Response:
        """What happened since the last time."""
        told = {"driving": len(self.drivers), "claimed": self.claimed, "facts": self.facts}
        told |= {"finished": self.finished, "posts_s": self.took_s, "troubles": self.troubles}
        self.took_s, self.troubles = [], []
        return web.json_response(told)

    async def end(self, request: web.Request) -> web.Response:
        order = await request.json()
        for driver, task in list(self.drivers.values())[: order["count"]]:
            driver.silent = order["silent"]
            driver.over.set()
            if driver.silent:
                await task
        return web.json_response({})

    async def other(self, request: web.Request) -> web.Response:
        if re.match("/api/v0/nodes", request.path):
            return web.json_response({"data": {"result": {"result": self.nodes}}})
        if request.path == "/api/version":
            return web.json_response({"ray_version": "2.60.0", "session_name": "session_bench"})
        return web.json_response({"data": {"clusterStatus": None}})


async def main(nodes: int, cpus: float) -> None:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as http:
        app = web.Application()
        app.add_routes(Cluster(nodes, cpus, http).routes())
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(1)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))

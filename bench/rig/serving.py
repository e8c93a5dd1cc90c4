"""A service under load: its process, its store, the cluster that it thinks it has, and who asks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from elastrain.service.migrations import migrate
from elastrain.service.settings import Settings
from elastrain.service.store import Store, fresh
from elastrain.trainers.spec import parse_spec
from rig.arrivals import spec
from rig.run import cpu_s

HERE = Path(__file__).parents[1]
WAIT_S = 180.0
PER_FILL = 500  # jobs in one transaction
Json = dict[str, Any]


@dataclass
class Serving:
    """Everything that runs; `env` is what the service was started with."""

    env: dict[str, str]
    fake: subprocess.Popen[bytes]
    cluster_url: str
    url: str
    service: subprocess.Popen[bytes]
    arrivals: subprocess.Popen[str]
    http: httpx.Client
    token: str

    def arrive(self, what: str, rate: float, seconds: float, run: str) -> Json:
        """Open-loop requests; -> {latencies_s, statuses, late_s}, and what the service used meanwhile."""
        order = {"url": self.url, "token": self.token, "what": what, "rate": rate, "seconds": seconds}
        assert self.arrivals.stdin is not None and self.arrivals.stdout is not None
        before, began = cpu_s(self.service.pid), time.monotonic()
        self.arrivals.stdin.write(json.dumps({**order, "run": run}) + "\n")
        self.arrivals.stdin.flush()
        found: Json = json.loads(self.arrivals.stdout.readline())
        used_s = cpu_s(self.service.pid) - before
        return {**found, "cpu_s": used_s, "wall_s": time.monotonic() - began}

    def cluster(self) -> Json:
        found: Json = self.http.get(f"{self.cluster_url}/bench").json()
        return found

    def let_end(self, count: int) -> None:
        self.http.post(f"{self.cluster_url}/bench/end", json={"count": count, "silent": False})

    def counts(self) -> dict[str, int]:
        """{status: jobs in it}, as the service's metrics say."""
        headers = {"Authorization": f"Bearer {self.token}"}
        text = self.http.get(f"{self.url}/metrics", headers=headers).text
        lines = [line for line in text.splitlines() if line.startswith("elastrain_jobs{")]
        return {line.split('"')[1]: int(float(line.rsplit(" ", 1)[1])) for line in lines}

    def own_s(self) -> float:
        """CPU seconds of all that belongs to this measurement."""
        ours = {self.service.pid, self.arrivals.pid, self.fake.pid}
        if self.env["ELASTRAIN_DATABASE_URL"]:
            ours |= {process.pid for process in psutil.process_iter(["name"]) if _serves(process)}
        return sum(map(cpu_s, ours))

    def process_env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": search_path(), **self.env}

    def rss_mb(self) -> float:
        return float(psutil.Process(self.service.pid).memory_info().rss) / 1e6

    def stop_service(self) -> None:
        self.service.terminate()
        self.service.wait(60)


@contextmanager
def serving(folder: Path, database: str | None, running: int, queued: int) -> Iterator[Serving]:
    """A service with so many jobs; those that are to run first have the highest priority, and just fit."""
    with ExitStack() as stack:
        cluster = _start(stack, "-m", "rig.cluster", str(running // 2), "8", stdout=subprocess.PIPE)
        assert cluster.stdout is not None
        ray = cluster.stdout.readline().decode().strip()
        http = stack.enter_context(httpx.Client(timeout=60, trust_env=False))
        port = _free_port()
        env = {"ELASTRAIN_HOME": str(folder), "ELASTRAIN_RAY_ADDRESS": ray}
        env |= {"ELASTRAIN_DATABASE_URL": database or "", "ELASTRAIN_URL": f"http://127.0.0.1:{port}"}
        fill(Settings.from_env(env), running, queued)
        log = stack.enter_context((folder / "service.log").open("wb"))
        command = ("-m", "elastrain.api.serve", "--port", str(port))
        service = _start(stack, *command, env=env, stdout=log, stderr=subprocess.STDOUT)
        arrivals = _start(
            stack, "-m", "rig.arrivals", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        url = env["ELASTRAIN_URL"]
        until(lambda: http.get(f"{url}/healthz").status_code == 200, "the service to answer")
        token = (folder / "token").read_text().strip()
        yield Serving(env, cluster, ray, url, service, arrivals, http, token)


def fill(settings: Settings, running: int, queued: int) -> None:
    """Jobs straight into the store, as submits would have left them. The first go first, and just fit."""
    migrate(settings.database_url)
    store, began = Store(settings.database_url), time.time() - running - queued
    first_ones = {"priority": 10, "workers": {**_whole()["workers"], "max": 4}}
    fill_with(store, range(running), began, **first_ones)
    fill_with(store, range(running, running + queued), began)
    store.close()


def fill_with(store: Store, numbers: range, began: float, **changes: Any) -> None:
    """Queued jobs, one a second."""
    whole = _whole()
    for first in range(0, len(numbers), PER_FILL):
        with store.write() as tx:
            for number in numbers[first : first + PER_FILL]:
                differs = {name: spec(number)[name] for name in ("name", "project", "priority", "labels")}
                dumped = {**whole, **differs, **changes}
                fresh.insert_new(tx, _id(number), spec=dumped, actor="bench", warnings=[], at=began + number)


def _whole() -> Json:
    """A spec with all its fields, checked once."""
    return parse_spec(spec(1)).model_dump(mode="json")


def _id(number: int) -> str:
    return f"j-{number:010d}"


def until(look: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    """Raises TimeoutError."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            if look():
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"waited {limit_s:.0f} s for {what}")


def _serves(process: psutil.Process) -> bool:
    return process.info["name"] == "postgres"


def search_path() -> str:
    return os.pathsep.join([str(HERE), *filter(None, sys.path)])


def _start(
    stack: ExitStack, *arguments: str, env: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """A Python process that ends with the stack."""
    environment = {**os.environ, "PYTHONPATH": search_path(), **(env or {})}
    process = subprocess.Popen([sys.executable, *arguments], env=environment, **options)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

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

from elastrain.service.settings import Settings
from rig.filling import fill
from rig.run import cpu_s

HERE = Path(__file__).parents[1]
WAIT_S = 180.0
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
        before, began = self.service_s(), time.monotonic()
        self.arrivals.stdin.write(json.dumps({**order, "run": run}) + "\n")
        self.arrivals.stdin.flush()
        found: Json = json.loads(self.arrivals.stdout.readline())
        used_s = self.service_s() - before
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
        ours = {*self.service_pids(), self.arrivals.pid, self.fake.pid}
        if self.env["ELASTRAIN_DATABASE_URL"]:
            ours |= {process.pid for process in psutil.process_iter(["name"]) if _serves(process)}
        return sum(map(cpu_s, ours))

    def service_pids(self) -> list[int]:
        children = psutil.Process(self.service.pid).children(recursive=True)
        return [self.service.pid, *(child.pid for child in children)]

    def service_s(self) -> float:
        """CPU seconds of the service's processes."""
        return sum(map(cpu_s, self.service_pids()))

    def process_env(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": search_path(), **self.env}

    def rss_mb(self) -> float:
        return sum(float(psutil.Process(pid).memory_info().rss) for pid in self.service_pids()) / 1e6

    def stop_service(self) -> None:
        self.service.terminate()
        self.service.wait(60)


@contextmanager
def serving(
    folder: Path, database: str | None, running: int, queued: int, workers: int = 1
) -> Iterator[Serving]:
    """A service with so many jobs; those that are to run first have the highest priority, and just fit.
    workers: processes that answer."""
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
        command = ("-m", "elastrain.api.serve", "--port", str(port), "--workers", str(workers))
        service = _start(stack, *command, env=env, stdout=log, stderr=subprocess.STDOUT)
        arrivals = _start(
            stack, "-m", "rig.arrivals", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        url = env["ELASTRAIN_URL"]
        until(lambda: http.get(f"{url}/healthz").status_code == 200, "the service to answer")
        token = (folder / "token").read_text().strip()
        yield Serving(env, cluster, ray, url, service, arrivals, http, token)


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

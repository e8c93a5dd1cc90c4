"""The service as a process that can be killed, a Ray that outlives it, and drivers that talk to both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from databases import free_port
from elastrain.trainers.storage import AlreadyExists, open_storage

WAIT_S = 60.0
DIES_AT = """
import os, signal, sys
from elastrain.service import points
points.watcher = lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == sys.argv[1] else None
from elastrain.api.serve import main
main(sys.argv[2:])
"""


def eventually(look: Callable[[], Any], what: str = "it") -> Any:
    """What `look` gives, once that is true. A service that is away is not an answer."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if found := look():
                return found
        except (httpx.HTTPError, OSError):
            pass
        assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:.0f} s"
        time.sleep(0.05)


class HttpRay:
    """Ray's Jobs API, as far as the service uses it. Every submission is noted, also a repeated one."""

    def __init__(self, cpus: float = 8.0) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.submits: list[str] = []
        self.checks: dict[str, dict[str, Any]] = {}
        self.cpus = cpus
        self._lock = threading.Lock()
        ray = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(*ray.get(self.path))

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self._reply(*ray.post(self.path, json.loads(self.rfile.read(length) or b"{}")))

            def _reply(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def get(self, path: str) -> tuple[int, Any]:
        if path.startswith("/api/v0/nodes"):
            node = {"node_id": "n1", "state": "ALIVE", "resources_total": {"CPU": self.cpus}}
            return 200, {"data": {"result": {"result": [node]}}}
        if path == "/api/cluster_status":
            return 200, {"data": {"clusterStatus": None}}
        if path == "/api/version":
            return 200, {"ray_version": "2.60.0", "session_name": "session_1"}
        with self._lock:
            if path == "/api/jobs/":
                return 200, list(self.jobs.values())
            id = path.removeprefix("/api/jobs/")
            found = self.checks.get(id) or self.jobs.get(id)
        return (200, found) if found else (404, {})

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        if stop := re.fullmatch(r"/api/jobs/(.+)/stop", path):
            self.set(stop[1], "STOPPED")
            return 200, {"stopped": True}
        id = body["submission_id"]
        if "-check-" in id:  # of the cluster; it prints nothing here
            self.checks[id] = {"submission_id": id, "status": "SUCCEEDED", "message": ""}
            return 200, {"submission_id": id}
        with self._lock:
            self.submits.append(id)
            if id in self.jobs:
                return 400, f"Job with submission_id {id} already exists"
            env = body["runtime_env"]["env_vars"]
            self.jobs[id] = {"submission_id": id, "status": "RUNNING", "message": "", "env": env}
        return 200, {"submission_id": id}

    def set(self, id: str, status: str) -> None:
        with self._lock:
            if id in self.jobs:
                self.jobs[id]["status"] = status

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@dataclass
class Service:
    """One service process after the other on one HOME and port. Others may share its database and HOME."""

    home: Path
    ray: HttpRay
    database: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = self.home / f"service-{self.port}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.clients: list[httpx.Client] = []

    def start(self, dies_at: str | None = None) -> Service:
        """dies_at: the named point at which it ends itself with SIGKILL."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("ELASTRAIN_")}
        ours |= {"ELASTRAIN_HOME": str(self.home), "ELASTRAIN_RAY_ADDRESS": self.ray.url}
        ours |= {"ELASTRAIN_URL": self.url, "ELASTRAIN_DATABASE_URL": self.database or "", **self.env}
        program = ["-m", "elastrain.api.serve"] if dies_at is None else ["-c", DIES_AT, dies_at]
        with self.log.open("ab") as log:
            command = [sys.executable, *program, "--port", str(self.port), *self.arguments]
            self.process = subprocess.Popen(command, env=ours, stdout=log, stderr=log)
        if dies_at is None:
            eventually(lambda: httpx.get(f"{self.url}/healthz", trust_env=False).is_success, "the service")
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def died(self) -> int:
        """Wait for its end; -> the exit code."""
        assert self.process is not None
        return self.process.wait(timeout=WAIT_S)

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=WAIT_S)

    def client(self) -> httpx.Client:
        token = eventually((self.home / "token").read_text, "the token").strip()
        headers = {"Authorization": f"Bearer {token}"}
        made = httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=30, verify=False)
        self.clients.append(made)
        return made


class Crew:
    """A driver for each Ray Job: claims, reports its steps, and succeeds, however often the service dies."""

    def __init__(self, ray: HttpRay, home: Path, steps: int = 3, pause_s: float = 0.0) -> None:
        self.ray, self.steps, self.pause_s = ray, steps, pause_s
        self.storage = open_storage((home / "objects").as_uri())
        self.http = httpx.Client(trust_env=False, timeout=30, verify=False)
        self.faults: list[str] = []  # answers that no driver should ever get
        self._started = set[str]()
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(16)
        self._thread = threading.Thread(target=self._recruit, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)
        self.http.close()

    def _recruit(self) -> None:
        while not self._over.wait(0.02):
            for id, job in list(self.ray.jobs.items()):
                if id not in self._started and job["status"] == "RUNNING":
                    self._started.add(id)
                    self._pool.submit(self._drive, id, job["env"])

    def _drive(self, id: str, env: dict[str, str]) -> None:
        job, attempt = env["ELASTRAIN_JOB"], int(env["ELASTRAIN_ATTEMPT_NUMBER"])
        url = env["ELASTRAIN_DRIVER_URL"]
        claim = {"protocol": 1, "job": job, "attempt": attempt, "nonce": f"nonce-of-{id}"}
        granted = self._ask(f"{url}/v1/driver/claim", {**claim, "code": env["ELASTRAIN_CLAIM"]})
        if granted is None:
            return
        post = {"attempt": attempt}
        token = granted["token"]
        running = {"kind": "progress", "status": "running", "step": 0, "total_steps": self.steps}
        self._ask(f"{url}/v1/driver/facts", {**post, "first_seq": 1, "facts": [running]}, token)
        for step in range(1, self.steps + 1):
            fact = {"kind": "metric", "step": step, "values": {"loss": 1.0 / step}, "epoch_no": 0}
            self._ask(f"{url}/v1/driver/facts", {**post, "first_seq": step + 1, "facts": [fact]}, token)
            time.sleep(self.pause_s)
        outcome = {"outcome": "succeeded", "step": self.steps, "failed_by": None, "message": None}
        try:
            self.storage.put(f"jobs/{job}/attempts/{attempt}/outcome.json", json.dumps(outcome).encode())
        except AlreadyExists:
            self.faults.append(f"{id} had an outcome already")
        last = {**post, "first_seq": self.steps + 2, "facts": [{"kind": "outcome", **outcome}]}
        self._ask(f"{url}/v1/driver/facts", last, token)
        self.ray.set(id, "SUCCEEDED")

    def _ask(self, url: str, body: Any, token: str = "") -> Any:
        """Until there is an answer, as a driver does."""
        while not self._over.is_set():
            try:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                reply = self.http.post(url, json=body, headers=headers)
            except httpx.HTTPError:
                time.sleep(0.1)
                continue
            if reply.is_success:
                return reply.json()
            self.faults.append(f"{reply.status_code} {reply.text[:300]}")
            return None
        return None

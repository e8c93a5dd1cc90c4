"""What a driver takes of memory: real ones on a real Ray, each a Ray Job as the service submits it.

They claim a job whose workers fit nowhere, and wait for them: everything of a driver runs (Ray's client, the
coordinator, the line to the service), and nothing trains. PSS: what is shared with others counts in parts.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from elastrain.service.ray_jobs import Launch, RayJobs
from elastrain.service.up_home import Home
from elastrain.service.up_ray import RayHead
from elastrain.trainers.launching.sweep import TAG
from elastrain.trainers.spec import parse_spec

DRIVERS = 2
READY_S, SETTLED_S = 90.0, 8.0
SPEC = {
    "name": "idle",
    "task": "elastrain.trainers.tasks.digits:Digits",
    "batch": {"size": 64, "microbatch": 16},
    "steps": 10,
    "workers": {"min": 1, "max": 1},
    "resources": {"cpu": 10_000},
}


class Desk:
    """The service, as far as an idle driver asks it."""

    def __init__(self, objects: str) -> None:
        self.claimed: set[str] = set()
        desk = self
        desired = {"version": 1, "desired": "run", "workers": {"min": 1, "max": 1, "target": 1}}
        desired |= {"checkpoint_no": 0, "checkpoint_done": 0}
        spec = parse_spec(SPEC).model_dump(mode="json")
        granted = {"protocol": 1, "token": "t", "spec": spec, "storage_url": objects, "desired": desired}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(20.0)
                self.answer(desired)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path.endswith("/claim"):
                    desk.claimed.add(body["job"])
                    self.answer(granted)
                else:
                    self.answer({"acked_seq": body["first_seq"] + len(body["facts"]) - 1})

            def answer(self, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@contextmanager
def head(folder: Path) -> Iterator[RayHead]:
    """A Ray head of our own."""
    home = Home(folder)
    started = RayHead(home, cpus=2)
    started.start()
    try:
        _until(started.ready, f"Ray: {started.log_file}")
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(home.ray_token_file)
        yield started
    finally:
        started.stop()


def measure(drivers: int = DRIVERS) -> dict[str, float]:
    """MB per driver: its own process, and with what Ray starts beside it."""
    with tempfile.TemporaryDirectory(prefix="load-") as folder, head(Path(folder)) as ray:
        desk, jobs = Desk((Path(folder) / "objects").as_uri()), RayJobs(ray.address)
        names = [f"j-{number:010d}" for number in range(drivers)]
        for name in names:
            env = {"ELASTRAIN_DRIVER_URL": desk.url, "ELASTRAIN_JOB": name, "ELASTRAIN_CLAIM": "code"}
            env |= {"ELASTRAIN_ATTEMPT_NUMBER": "1", TAG: f"bench/{name}/1"}
            env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
            jobs.submit(Launch(f"bench-{name}-1", f"{sys.executable} -m elastrain.trainers.driver", env))
        _until(lambda: len(desk.claimed) == drivers, "the drivers' claims")
        time.sleep(SETTLED_S)
        sizes = [_sizes(f"bench/{name}/1") for name in names]
        for name in names:
            jobs.stop(f"bench-{name}-1")
        jobs.close()
        desk.server.shutdown()
        own, whole = (sum(size[at] for size in sizes) / drivers for at in (0, 1))
        return {"driver_mb": own, "with_ray_mb": whole}


def _sizes(tag: str) -> tuple[float, float]:
    """(MB of the driver's process, MB of all processes with this tag)"""
    own = whole = 0.0
    for process in psutil.process_iter():
        try:
            if process.environ().get(TAG) == tag:
                size = process.memory_full_info().pss / 1e6
                whole += size
                command = process.cmdline()
                own += size if "elastrain.trainers.driver" in command and "-c" not in command else 0.0
        except psutil.Error:
            continue
    return own, whole


def _until(look: Any, what: str) -> None:
    deadline = time.monotonic() + READY_S
    while not look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {READY_S:.0f} s for {what}")
        time.sleep(0.2)

"""A launcher on the tests' Ray, and whoever its workers register with: enough of an attempt to place them."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from elastrain.trainers.launching.launcher import GroupEnded, GroupStart, WorkerStart
from elastrain.trainers.membership.messages import Notice
from elastrain.trainers.storage import open_storage

JOB = f"j-{secrets.token_hex(5)}"  # others' jobs may run on this machine
TAG = {"ELASTRAIN_ATTEMPT": f"test/{JOB}/1"}


# A task that is not there: the worker says so and waits to be dismissed, for as long as a test needs it.
WELCOME = {
    "kind": "welcome",
    "spec": {"name": "x", "task": "no_such_module:T", "batch": {"size": 8, "microbatch": 2}, "epochs": 1},
    "beat_s": 1.0,
    "storage_url": "memory://",
    "storage_options": {},
    "package": None,
    "env": {"CANARY": "the-canary"},
}


class Coordinator:
    """Lets workers register and keeps them waiting; `silent` ones are not even answered."""

    silent = frozenset({"w5"})

    def __init__(self) -> None:
        self.connections: dict[str, ServerConnection] = {}
        self.said: dict[str, str] = {}  # how each registered
        self.server: Server = serve(self._accept, "127.0.0.1", 0, process_request=None)
        self.url = f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}"

    def _accept(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        worker = connection.request.path.partition("worker=")[2]
        with contextlib.suppress(ConnectionClosed):  # killed
            self.said[worker] = str(connection.recv())
            self.connections[worker] = connection  # who is here has said all
            if worker not in self.silent:
                connection.send(json.dumps(WELCOME))
            while True:
                connection.recv()

    def dismiss(self, worker: str) -> None:
        self.connections[worker].close()


class Launched:
    def __init__(
        self,
        store: Path,
        coordinator: Coordinator,
        cpu: float = 0.5,
        labels: Mapping[str, str] | None = None,
        attempt: int = 1,
        **resources: float,
    ) -> None:
        from elastrain.trainers.launching.ray_launcher import RayLauncher

        self.coordinator = coordinator
        self.facts: list[dict[str, Any]] = []
        self.ended: list[GroupEnded] = []
        self.notices: list[Notice] = []
        self.storage = open_storage(f"file://{store}")
        self.launcher = RayLauncher(
            JOB,
            attempt,
            tag=TAG["ELASTRAIN_ATTEMPT"],
            resources={"CPU": cpu, **resources},
            labels=labels or {},
            storage_url=f"file://{store}",
            storage_options={},
            said=self.facts.append,
        )

    def start(self, group: str, *workers: str, url: str | None = None) -> None:
        address = url or self.coordinator.url
        starts = tuple(WorkerStart(w, group, address, "the-key", JOB, 1, 0.5) for w in workers)
        self.launcher.start(GroupStart(group, starts))

    def look(self) -> None:
        for news in self.launcher.poll():
            if isinstance(news, Notice):
                self.notices.append(news)
            else:
                self.ended.append(news)

    def wait_ended(self, group: str, timeout_s: float = 120) -> dict[str, str]:
        def ended() -> GroupEnded | None:
            self.look()
            return next((e for e in self.ended if e.group == group), None)

        return dict(wait_for(ended, timeout_s).causes)

    def log(self, worker: str) -> bytes:
        return b"".join(
            self.storage.get(entry.key) for entry in self.storage.list(f"jobs/{JOB}/logs/1/{worker}")
        )


def wait_for(look: Callable[[], Any], timeout_s: float = 120) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain"
        time.sleep(0.05)
    return found

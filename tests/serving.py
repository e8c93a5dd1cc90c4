"""A service to talk to in tests: uvicorn in a thread, and what a driver would report about a job."""

import hashlib
import socket
import threading
import time
from typing import Any

from elastrain.api.serve import server
from elastrain.service.auth import digest, new_token
from elastrain.service.control import Control
from elastrain.service.jobs import Reason, Status
from elastrain.service.store import attempts, feed, jobs, metrics, tokens, training
from elastrain.trainers.storage import Storage

SPEC = {
    "name": "digits",
    "task": "elastrain.trainers.tasks.digits:Digits",
    "optimizer": {"name": "adam", "lr": 0.001},
    "batch": {"size": 64, "microbatch": 16},
    "steps": 100,
    "workers": {"min": 1, "max": 4},
}


RECEIPT = {
    "proven": True,
    "reason": None,
    "message": "1 node searched, 2 processes left behind and ended",
    "nodes": [{"node": "n0", "pids": [41, 42], "seconds": 0.3}],
    "unsearched": [],
    "seconds": 0.4,
}


class Live:
    """uvicorn in a thread, to be stopped and started again on the same port."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        listening.listen(64)
        self.port = listening.getsockname()[1]
        self.server = server(self.control, "127.0.0.1", self.port)
        self.server.config.timeout_graceful_shutdown = 1
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listening]})
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()


class Life:
    """What a driver would report about one job, written straight into the store."""

    def __init__(self, control: Control, storage: Storage, job: str) -> None:
        self.control = control
        self.storage = storage
        self.job = job
        self.logged: dict[str, int] = {}

    def move(self, status: Status, reason: Reason, message: str | None = None, **values: Any) -> None:
        with self.control.store.write() as tx:
            jobs.move(tx, jobs.lock(tx, self.job), status, reason, message, "driver", time.time(), **values)
        self.control.changes.tell(self.job)

    def runs(self) -> None:
        self.move(Status.STARTING, Reason.WORKERS_GRANTED, attempt=1, attempts_made=1)
        self.move(Status.RUNNING, Reason.TRAINING, total_steps=100, workers_target=2, workers_active=2)

    def succeeds(self) -> None:
        self.move(Status.SUCCEEDED, Reason.COMPLETED)

    def fails(self, message: str) -> None:
        self.move(Status.FAILED, Reason.USER_ERROR, message, failed_by="user")

    def is_cancelled(self, receipt: dict[str, Any]) -> None:
        """Its only attempt is over, and this is known of its end."""
        about = {"submission_id": f"i-{self.job}-1", "code": "c", "code_digest": "d", "token_secret": "s"}
        with self.control.store.write() as tx:
            attempts.open_new(tx, self.job, 1, **about, cluster="session_1", at=time.time())
            attempts.change(tx, self.job, 1, state="ended", receipt=receipt)
        self.move(Status.CANCELLED, Reason.USER_REQUEST)

    def event(self, type: str, message: str, **data: Any) -> None:
        with self.control.store.write() as tx:
            feed.add_event(tx, self.job, type, message, data, time.time())
        self.control.changes.tell(self.job)

    def step(self, step: int, **values: float) -> None:
        with self.control.store.write() as tx:
            metrics.add(tx, self.job, 1, [metrics.NewPoint(step, values, 0, time.time())])
            jobs.change(tx, self.job, step=step)
        self.control.changes.tell(self.job)

    def prints(self, worker: str, output: bytes) -> None:
        """One segment of a worker's output."""
        offset = self.logged.get(worker, 0)
        self.storage.put(f"jobs/{self.job}/logs/1/{worker}/{offset:012d}", output)
        self.logged[worker] = offset + len(output)
        with self.control.store.write() as tx:
            feed.add_segment(tx, self.job, 1, worker, offset, len(output), time.time())
        self.control.changes.tell(self.job)

    def has_worker(self, worker: str, **values: Any) -> None:
        with self.control.store.write() as tx:
            training.put_worker(tx, self.job, 1, worker, {"group": "g0", "node": "n0", "pid": 4242, **values})

    def saves(self, step: int, **files: bytes) -> None:
        """A checkpoint with these files; an underscore stands for the dot."""
        folder = f"jobs/{self.job}/checkpoints/{step:010d}"
        items = []
        for name, data in files.items():
            name = name.replace("_", ".")
            self.storage.put(f"{folder}/{name}", data)
            items.append({"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        values = {"state": "saved", "attempt": 1, "epoch": 1, "created_at": time.time(), "files": items}
        values |= {
            "bytes": sum(item["bytes"] for item in items),
            "params_digest": "p" * 64,
            "state_digest": "s" * 64,
        }
        with self.control.store.write() as tx:
            training.put_checkpoint(tx, self.job, step, values)


def token_of(control: Control, role: str, project: str | None) -> str:
    """A fresh token with this role in this project."""
    token = new_token()
    with control.store.write() as tx:
        tokens.add(tx, digest(token), name=f"{role} of {project}", role=role, project=project, at=time.time())
    return token

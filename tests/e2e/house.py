"""A whole elastrain for tests: started as a user starts it, looked at as a user looks at it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from elastrain.api.cli import demo_server
from elastrain.api.cli.demo_record import Record
from elastrain.client import Client, Job

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits.yaml"
# Long enough to be killed on the way, short enough to wait for.
SHORT = ("epochs=40", "checkpoint.every_steps=40", "evaluate.every_steps=null")
STEPS = 240


@dataclass
class House:
    """One HOME and the `elastrain up` on it."""

    home: Path
    server: demo_server.Server

    @classmethod
    def start(cls, home: Path) -> House:
        return cls(home, demo_server.start(home))

    def ready(self) -> House:
        self.server.wait_ready()
        return self

    def again(self) -> House:
        """A new `up` on the same HOME."""
        return House.start(self.home)

    @property
    def client(self) -> Client:
        return self.server.client()

    def cli(self, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        """A command line as in another shell; it finds the service through HOME."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ELASTRAIN_")}
        return subprocess.run(
            demo_server.command(*arguments),
            env={**environment, "ELASTRAIN_HOME": str(self.home)},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def kill(self) -> None:
        """kill -9 of the service, and of nothing else."""
        self.server.process.kill()
        self.server.process.wait()

    def processes(self) -> list[psutil.Process]:
        """Everything that runs for this HOME, Ray and what runs on it: by its head's session and mark."""
        file = self.home / "ray.json"
        record = json.loads(file.read_text()) if file.exists() else None
        return [p for p in psutil.process_iter() if record and _belongs(p, record["pid"], record["mark"])]

    def driver(self, job: Job) -> psutil.Process:
        """The driver's own process, not the shell that Ray starts it with."""
        return eventually(lambda: next((p for p in psutil.process_iter() if _drives(p, job.id)), None))


class Houses:
    """The current `up` on the shared HOME: some tests kill it and start the next."""

    def __init__(self, home: Path) -> None:
        self._house = House.start(home).ready()

    @property
    def now(self) -> House:
        if self._house.server.process.poll() is not None:
            self._house = self._house.again().ready()
        return self._house


class Watched:
    """A job that is followed in the background from its submission on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.record = Record()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def at_step(self, step: int, timeout_s: float = 90) -> Watched:
        """Wait until that step is accepted."""
        eventually(lambda: self.record.step >= step or self._ended(), timeout_s)
        assert self.record.step >= step, (self.job.refresh().data["message"], self.record.events)
        return self

    def ended(self, timeout_s: float = 180) -> Job:
        """Wait for its end and for all that it told."""
        self.job.wait(timeout_s)
        self._thread.join(20)
        return self.job

    def _ended(self) -> bool:
        return not self._thread.is_alive()

    def _follow(self) -> None:
        for update in self.job.follow():
            self.record.take(update)


def eventually(look: Callable[[], Any], timeout_s: float = 60, every_s: float = 0.1) -> Any:
    """What `look` gives, once that is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s"
        time.sleep(every_s)
    return found


def active(job: Job) -> dict[str, int]:
    """Workers that train now -> pid."""
    return {worker["id"]: worker["pid"] for worker in job.workers() if worker["state"] == "active"}


def kill_pid(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def digests(job: Job) -> dict[str, Any]:
    """What two runs of a spec are compared by."""
    newest = job.checkpoint().data
    return {name: newest[name] for name in ("step", "params_digest")}


def _belongs(process: psutil.Process, session: int, mark: str) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return os.getsid(process.pid) == session or process.environ().get("ELASTRAIN_HEAD") == mark
    except (psutil.Error, OSError):
        return False


def _drives(process: psutil.Process, job: str) -> bool:
    try:
        command = process.cmdline()
        return "elastrain.trainers.driver" in command and process.environ().get("ELASTRAIN_JOB") == job
    except (psutil.Error, OSError):
        return False

"""ctrl-C: jobs go home first; a second one does not wait. What cannot start says why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from elastrain.service import up as module
from elastrain.service.control import Control
from elastrain.service.up import CONFLICT, FAILED, Server, Wishes, down, up
from elastrain.service.up_home import Home
from elastrain.service.up_ports import LOOPBACK
from elastrain.service.up_processes import ProcessId


class FakeService:
    """A service whose jobs need `takes_s` to come home."""

    def __init__(self, jobs: list[str], takes_s: float) -> None:
        self.done: list[str] = []
        self._jobs = jobs
        self._free_at = time.monotonic() + takes_s
        self.control = self

    def hold(self) -> None:
        self.done.append("hold")

    def preempt_all(self, message: str) -> list[str]:
        self.done.append("preempt")
        return self._jobs

    def open_attempts(self) -> list[str]:
        return self._jobs if time.monotonic() < self._free_at else []


def never(control: Control, host: str, port: int) -> Server:
    raise AssertionError("nothing should be served")


def send_home(service: FakeService, hurry: threading.Event) -> float:
    begun = time.monotonic()
    module._send_jobs_home(service, hurry, lambda text: None)  # type: ignore[arg-type]
    return time.monotonic() - begun


def test_no_job_starts_any_more_before_the_running_ones_are_asked_to_go_home() -> None:
    service = FakeService(["j-1"], takes_s=0.5)
    assert 0.5 <= send_home(service, threading.Event()) < 5
    assert service.done == ["hold", "preempt"]


def test_without_running_jobs_ctrl_c_does_not_wait() -> None:
    assert send_home(FakeService([], takes_s=60), threading.Event()) < 1


def test_a_second_ctrl_c_does_not_wait() -> None:
    asked = module._AskedToStop()
    with asked.handlers():
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.once.wait(5) and not asked.twice.is_set()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        assert send_home(FakeService(["j-1"], takes_s=60), asked.twice) < 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_port_that_somebody_else_took_is_named_and_up_exits_5(tmp_path: Path) -> None:
    said: list[str] = []
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        port = other.getsockname()[1]
        Home(tmp_path).write("ports.json", {"service": port})
        assert up(tmp_path, never, Wishes(), said.append) == CONFLICT
    assert f"port {port}" in said[-1] and f"pid {os.getpid()}" in said[-1]


def test_a_setting_that_is_wrong_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("ELASTRAIN_CANCEL_GRACE_S", "soon")
    assert up(tmp_path, never, Wishes(), said.append) == FAILED
    assert "ELASTRAIN_CANCEL_GRACE_S" in said[-1] and "soon" in said[-1]
    assert not (tmp_path / "ray.json").exists()


def test_a_home_that_cannot_be_made_is_named_with_the_variable_to_set(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    assert up(tmp_path / "file" / "home", never, Wishes(), said.append) == FAILED
    assert str(tmp_path / "file") in said[-1] and "ELASTRAIN_HOME" in said[-1]


def test_down_on_a_home_where_nothing_runs_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    assert down(tmp_path, said.append) == 0
    assert said == ["nothing is running"]


def test_down_of_an_up_says_that_it_stopped(tmp_path: Path) -> None:
    up = subprocess.Popen(["sleep", "60"])  # ends on SIGTERM, as an `up` does
    threading.Thread(target=up.wait, daemon=True).start()
    process = ProcessId.of(up.pid)
    assert process is not None
    Home(tmp_path).write("server.json", {"url": "http://127.0.0.1:1", **process.to_dict()})
    said: list[str] = []
    assert down(tmp_path, said.append) == 0
    assert said == [f"stopping elastrain (pid {up.pid}) ...", "stopped"]

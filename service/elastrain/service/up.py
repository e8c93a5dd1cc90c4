"""`elastrain up`: everything on this machine, in the foreground, until ctrl-C. `down`, for what a kill left.

One process holds the store, the reconciler and the API; Ray is a process of its own beside it (`up_ray.py`).

    lock HOME -> its port -> settings -> store -> reconciler and API -> look after Ray, every half second
    ctrl-C    -> jobs checkpoint and go back to the queue -> API and reconciler end -> Ray ends -> lock gone
    kill -9   -> Ray and the jobs go on; the next `up` finds both
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Protocol

from elastrain.service import interpreter
from elastrain.service.assembly import Service
from elastrain.service.control import Control
from elastrain.service.errors import Unavailable
from elastrain.service.settings import Settings, SettingsError
from elastrain.service.up_home import Home, HomeTaken
from elastrain.service.up_ports import LOOPBACK, PortTaken, choose_service_port, listen
from elastrain.service.up_processes import ProcessId
from elastrain.service.up_ray import RayHead
from elastrain.service.up_supervisor import Supervisor
from elastrain.trainers.storage import StorageError

CHECKPOINT_TIME_S = 30.0  # what ctrl-C gives running jobs
ROUND_S = 0.5
OK, FAILED, CONFLICT = 0, 1, 5  # exit codes

Say = Callable[[str], None]


class Server(Protocol):
    """A web server over a Control, not started; uvicorn's has this shape."""

    should_exit: bool
    started: bool

    def run(self, sockets: list[socket.socket] | None = None) -> None: ...


Serve = Callable[[Control, str, int], Server]


@dataclass(frozen=True)
class Wishes:
    """What the user gave on the command line."""

    host: str = LOOPBACK
    port: int | None = None  # None: the one kept in HOME, or a free one that is kept from then on
    cpus: float | None = None  # that Ray may give to jobs; None: what the machine has


def up(home_path: Path, serve: Serve, wishes: Wishes, say: Say) -> int:
    """Run everything until ctrl-C; returns the exit code. `serve` makes the web server: it lives in api."""
    if find_spec("ray") is None:
        say("Ray is not installed, and `elastrain up` runs jobs on it: pip install 'elastrain[train]'")
        return FAILED
    try:
        home = Home(home_path)
    except OSError as error:
        where = error.filename or home_path
        say(f"{where}: {error.strerror}: set ELASTRAIN_HOME to a folder that can be written")
        return FAILED
    try:
        with home.locked(), ExitStack() as stack:
            return _run(home, serve, wishes, say, stack)
    except (HomeTaken, PortTaken) as error:
        say(str(error))
        return CONFLICT
    except (SettingsError, StorageError, Unavailable) as error:
        say(str(error))
        return FAILED
    except PermissionError as error:
        say(f"{error.filename} is not ours to write: set ELASTRAIN_HOME to a folder that is")
        return FAILED


def down(home_path: Path, say: Say) -> int:
    """Stop what runs on this HOME: an `up` as by ctrl-C, or what a killed one left. Returns the exit code."""
    home = Home(home_path)
    record = home.read("server.json")
    server = ProcessId.from_dict(record) if record else None
    running = server is not None and server.alive
    if server is not None and running:
        say(f"stopping elastrain (pid {server.pid}) ...")
        server.signal(signal.SIGTERM)
        deadline = time.monotonic() + CHECKPOINT_TIME_S + 30
        while server.alive and time.monotonic() < deadline:
            time.sleep(0.2)
    try:
        with home.locked():
            head = RayHead(home)
            found, left = head.alive, head.stop()
    except HomeTaken as error:
        say(str(error))
        return CONFLICT
    if left:
        say(f"these processes would not end: {', '.join(str(process.pid) for process in left)}")
        return FAILED
    say("stopped Ray and the jobs on it" if found else "stopped" if running else "nothing is running")
    return OK


def _run(home: Home, serve: Serve, wishes: Wishes, say: Say, stack: ExitStack) -> int:
    _log_to(home.logs / "service.log")
    interpreter.share()
    asked = _AskedToStop()
    stack.enter_context(asked.handlers())
    bound = stack.enter_context(_own_port(home, wishes))
    head = RayHead(home, cpus=wishes.cpus)
    settings = _settings(home, head.settle(), int(bound.getsockname()[1]))
    supervisor = Supervisor(head, say)
    stack.enter_context(_ray_ended(head, say))
    supervisor.round(time.monotonic())  # Ray takes the longest to come, so it is first
    service = stack.enter_context(Service(settings))
    service.control.auth.ensure_admin_token(home.token_file)
    serving = stack.enter_context(_serving(serve, service.control, wishes.host, bound))
    interpreter.settle()
    url = _announce(home, wishes.host, bound)
    say(_greeting(home, url, head))
    while not asked.once.wait(ROUND_S):
        supervisor.round(time.monotonic())
        if not serving.is_alive():
            say(f"the API ended by itself, see {home.logs / 'service.log'}")
            return FAILED
    _send_jobs_home(service, asked.twice, say)
    say("stopping ...")
    return OK


@contextmanager
def _ray_ended(head: RayHead, say: Say) -> Iterator[None]:
    """Ray ends last; but if the service failed to start, one that was found stays for the next try."""
    found = head.alive
    try:
        yield
    except Exception:
        if not found:
            head.stop()
        raise
    left = head.stop()
    say("stopped" if not left else f"these processes would not end: {[process.pid for process in left]}")


@contextmanager
def _serving(serve: Serve, control: Control, host: str, bound: socket.socket) -> Iterator[threading.Thread]:
    """The web server in a thread, answering when this is entered."""
    server = serve(control, host, int(bound.getsockname()[1]))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, name="api", daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield thread
    finally:
        server.should_exit = True
        thread.join(timeout=10)


def _announce(home: Home, host: str, bound: socket.socket) -> str:
    """Say in HOME where we are, for a second `up` and for `down`; returns the address."""
    me = ProcessId.of(os.getpid())
    assert me is not None
    url = f"http://{LOOPBACK if host == '0.0.0.0' else host}:{bound.getsockname()[1]}"
    home.write("server.json", {"url": url, **me.to_dict()})
    return url


def _send_jobs_home(service: Service, hurry: threading.Event, say: Say) -> None:
    """Running jobs checkpoint and go back to the queue, where the next `up` finds them."""
    service.hold()
    jobs = service.control.preempt_all("elastrain up was stopped")
    if not jobs:
        return
    many = "1 running job" if len(jobs) == 1 else f"{len(jobs)} running jobs"
    say(f"asking {many} to checkpoint, {CHECKPOINT_TIME_S:.0f} s at most (ctrl-C again: do not wait)")
    deadline = time.monotonic() + CHECKPOINT_TIME_S
    while service.control.open_attempts() and time.monotonic() < deadline and not hurry.wait(0.2):
        pass


class _AskedToStop:
    """ctrl-C, a `kill`, a closed terminal: the first one asks to stop, the second one not to wait."""

    def __init__(self) -> None:
        self.once = threading.Event()
        self.twice = threading.Event()

    @contextmanager
    def handlers(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            if not (number is signal.SIGHUP and before[number] is signal.SIG_IGN):  # nohup stays nohup
                signal.signal(number, self._take)
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, before[number])

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.once.is_set():
            self.twice.set()
        self.once.set()


@contextmanager
def _own_port(home: Home, wishes: Wishes) -> Iterator[socket.socket]:
    """The service's port, listening. Raises PortTaken naming by whom, if it is not ours to have."""
    ports = home.read("ports.json") or {}
    port = wishes.port or ports.get("service") or choose_service_port(wishes.host)
    with listen(port, wishes.host) as bound:
        home.write("ports.json", {**ports, "service": port})
        yield bound


def _settings(home: Home, ray_address: str, port: int) -> Settings:
    """The environment's settings, with those parts that `up` brings itself."""
    environment = {k: v for k, v in os.environ.items() if k not in ("ELASTRAIN_URL", "ELASTRAIN_RAY_ADDRESS")}
    given = Settings.from_env({**environment, "ELASTRAIN_HOME": str(home.path)})
    own_url = f"http://{LOOPBACK}:{port}"
    os.environ.pop("RAY_AUTH_TOKEN", None)  # of another Ray
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(home.ray_token_file)  # where the service reads Ray's token
    return replace(
        given,
        ray_address=ray_address,
        dashboard_url=os.environ.get("ELASTRAIN_RAY_DASHBOARD_URL") or ray_address,
        driver_url=os.environ.get("ELASTRAIN_DRIVER_URL") or own_url,
        driver_python=shlex.quote(sys.executable),  # on PATH may be another Python, without elastrain
    )


def _greeting(home: Home, url: str, head: RayHead) -> str:
    return (
        f"elastrain is up\n"
        f"  API     {url}   (the token for it is in {home.token_file})\n"
        f"  Ray     {head.address}   (its dashboard asks for the token in {home.ray_token_file})\n"
        f"  home    {home.path}\n"
        f"In another shell: elastrain submit examples/digits.yaml --follow. Ctrl-C here stops everything."
    )


def _log_to(file: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(file, maxBytes=20 * 2**20, backupCount=2)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each of the reconciler's looks at Ray

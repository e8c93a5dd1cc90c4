"""A whole elastrain for a little while: `elastrain up` on a HOME of its own in a temporary folder."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastrain.client import Client
from elastrain.client.errors import ElastrainError

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 60.0


class ServerFailed(Exception):
    """The service did not come up. The message holds the end of what it said."""


class Server:
    """A running `elastrain up`. `pid` is its process; `said` what it printed so far."""

    def __init__(self, home: Path, process: "subprocess.Popen[bytes]") -> None:
        self.home = home
        self.process = process

    @property
    def said(self) -> str:
        return (self.home / "up.log").read_text(errors="replace")

    def client(self) -> Client:
        """Of this service, whatever ELASTRAIN_URL says."""
        url = json.loads((self.home / "server.json").read_text())["url"]
        return Client(url, (self.home / "token").read_text().strip())

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until every check of /readyz is fine. Raises ServerFailed."""
        deadline, missing = time.monotonic() + timeout_s, "the API"
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerFailed(f"elastrain up ended with {self.process.returncode}:\n{self.said}")
            try:
                checks = self.readiness()
                missing = ", ".join(f"{name} ({detail})" for name, detail in checks.items() if detail)
            except (OSError, ValueError, ElastrainError):
                missing = "the API"
            if not missing and "Ray is ready" in self.said:  # it answers before it has a node
                return
            time.sleep(0.2)
        raise ServerFailed(f"not ready after {timeout_s:.0f} s: {missing}\n{self.said}")

    def readiness(self) -> dict[str, str]:
        """What each check complains of; empty text if nothing."""
        import httpx

        url = json.loads((self.home / "server.json").read_text())["url"]
        try:
            checks = httpx.get(f"{url}/readyz", timeout=5, trust_env=False).json()["checks"]
        except (httpx.HTTPError, KeyError) as error:
            raise OSError(str(error)) from error
        return {name: "" if check["ok"] else str(check["detail"]) for name, check in checks.items()}

    def stop(self) -> int:
        """As ctrl-C does; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


def command(*arguments: str) -> list[str]:
    """The command line of this very installation."""
    return [sys.executable, "-c", "from elastrain.api.cli import main; main()", *arguments]


def start(home: Path, *options: str) -> Server:
    """Starts `elastrain up` on `home`, in a session of its own: a ctrl-C here is not one there."""
    home.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ELASTRAIN_")}
    with (home / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command("up", *options),
            env={**environment, "ELASTRAIN_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(home, process)


@contextmanager
def running(*options: str) -> Iterator[Server]:
    """A service in a temporary HOME. However this ends, all that was started ends, and the HOME goes."""
    home = Path(tempfile.mkdtemp(prefix="elastrain-demo-"))
    server = start(home, *options)
    try:
        yield server
    finally:
        # who presses ctrl-C again leaves nothing either
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if server.stop() != 0:  # it died: what it left must not stay
                environment = {**os.environ, "ELASTRAIN_HOME": str(home)}
                subprocess.run(command("down"), env=environment, stdout=subprocess.DEVNULL, check=False)
            shutil.rmtree(home, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, before)

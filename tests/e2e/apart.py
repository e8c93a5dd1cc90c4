"""A cluster whose parts are machines of their own, as far as packets can tell: one network namespace each."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import httpx

from elastrain.client import Client
from elastrain.service.up_processes import MARK, ProcessId, belonging_to, end_all
from engine.netns import Network

GCS, DASHBOARD, API = 6379, 8265, 8470
RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
STORE = "--object-store-memory=104857600"


class Apart:
    """A Ray head without work, nodes with one CPU each, the service: every part on an address of its own."""

    def __init__(self, folder: Path, network: Network, nodes: int) -> None:
        self.folder, self.network, self.mark = folder, network, secrets.token_hex(8)
        self._parts: list[subprocess.Popen[bytes]] = []
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        self.ray_token = folder / "ray-token"
        self.ray_token.write_text(secrets.token_hex(32))
        self.ray_token.chmod(0o600)
        for who in ("head", "service", *(f"n{i}" for i in range(1, nodes + 1))):
            network.namespace(who)
        # its own short folder: a socket's path has 107 bytes
        self._short = Path("/tmp") / f"ea-{self.mark[:6]}"
        try:
            self._start_all(nodes)
        except BaseException:
            self.close()
            raise

    def _start_all(self, nodes: int) -> None:
        self._start(
            "head",
            *RAY,
            *("--head", f"--port={GCS}", f"--node-ip-address={self.address('head')}"),
            *(f"--dashboard-host={self.address('head')}", f"--dashboard-port={DASHBOARD}"),
            *("--include-dashboard=true", "--num-cpus=0", f"--temp-dir={self._short}", STORE),
        )
        self.eventually(lambda: self._answers(f"{self.ray}/api/version"), "the head")
        for i in range(1, nodes + 1):
            who = f"n{i}"
            joins = (f"--address={self.address('head')}:{GCS}", f"--node-ip-address={self.address(who)}")
            self._start(who, *RAY, *joins, "--num-cpus=1", STORE)
            # one after the other: nodes share the session's folder, where two that start at once take the
            # same names for their sockets and logs, and one of them waits for ever
            self.eventually(partial(self._knows, i + 1), who, 120.0)
        serve = (sys.executable, "-m", "elastrain.api.serve", "--host", self.address("service"))
        self._start("service", *serve, "--port", str(API))
        self.eventually(lambda: self._answers(f"{self.url}/healthz"), "the service")

    @property
    def ray(self) -> str:
        return f"http://{self.address('head')}:{DASHBOARD}"

    @property
    def url(self) -> str:
        return f"http://{self.address('service')}:{API}"

    def address(self, who: str) -> str:
        return self.network.addresses[who]

    def client(self) -> Client:
        self.eventually((self.home / "token").exists, "the token")
        return Client(self.url, (self.home / "token").read_text().strip())

    def close(self) -> None:
        """End everything, whatever namespace it is in."""
        for part in self._parts:
            leader = ProcessId.of(part.pid) or ProcessId(part.pid, 0.0)
            left = end_all(partial(belonging_to, leader, self.mark), grace_s=0.0)
            assert left == [], left
            part.wait(20)
        shutil.rmtree(self._short, ignore_errors=True)
        for log in self.folder.glob("*.log"):
            print(f"-- {log.stem}:", log.read_text(errors="replace")[-2000:])

    def eventually(self, look: object, what: str, timeout_s: float = 60.0) -> None:
        assert callable(look)
        deadline = time.monotonic() + timeout_s
        while not look():
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
            time.sleep(0.2)

    def _start(self, who: str, *command: str) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTRAIN_", "RAY_"))}
        for name in [name for name in inherited if name.lower().endswith("_proxy")]:
            del inherited[name]  # of the network outside
        environment = {
            **inherited,
            MARK: self.mark,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.ray_token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "180",
            "RAY_process_group_cleanup_enabled": "false",
            "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
        }
        if who == "service":
            environment |= {
                "ELASTRAIN_HOME": str(self.home),
                "ELASTRAIN_RAY_ADDRESS": self.ray,
                "ELASTRAIN_DRIVER_URL": self.url,
                "ELASTRAIN_DRIVER_PYTHON": sys.executable,
            }
        with (self.folder / f"{who}.log").open("wb") as log:
            part = subprocess.Popen(
                ["ip", "netns", "exec", self.network.namespace(who), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._parts.append(part)

    def _knows(self, nodes: int) -> bool:
        """Whether the head knows so many to be alive."""
        try:
            listed = self._get(f"{self.ray}/api/v0/nodes").json()["data"]["result"]["result"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False
        return sum(node["state"] == "ALIVE" for node in listed) == nodes

    def _answers(self, url: str) -> bool:
        try:
            return self._get(url).status_code == 200
        except httpx.HTTPError:
            return False

    def _get(self, url: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.ray_token.read_text()}"}
        return httpx.get(url, headers=headers, timeout=5, trust_env=False)

"""The Ray head of `elastrain up`: in a session of its own, it outlives the service and is taken over again.

It listens on the loopback only, on ports of its own, asks everybody for HOME's Ray token, and keeps its
files in a short folder of its own (a socket's path has at most 107 bytes). `ray stop` is never used: it would
end every Ray on the machine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from elastrain.service.up_home import Home
from elastrain.service.up_ports import LOOPBACK, PortTaken, RayPorts, choose_ray_ports
from elastrain.service.up_processes import MARK, ProcessId, belonging_to, end_all

STOP_GRACE_S = 1.0  # Ray keeps nothing that a longer one would save
LOG_LINES = 15
LONGEST_TEMP_DIR = 40  # bytes; Ray adds up to 65 to it for its sockets


class RayFailed(Exception):
    """Ray cannot be started here. The message says what to change."""


class RayHead:
    """Starts, finds again and ends the one Ray head of a HOME. `cpus=None` gives Ray what the machine has."""

    def __init__(self, home: Home, *, cpus: float | None = None) -> None:
        self._home = home
        self._cpus = cpus
        self._child: subprocess.Popen[bytes] | None = None  # only if this process started the head

    @property
    def log_file(self) -> Path:
        return self._home.logs / "ray.log"

    @property
    def ports(self) -> RayPorts:
        kept = (self._home.read("ports.json") or {}).get("ray")
        if kept is None:
            kept = self._choose_ports().base
        return RayPorts(int(kept))

    @property
    def address(self) -> str:
        """Of the dashboard, which is also the Jobs API."""
        return f"http://{LOOPBACK}:{self.ports.dashboard}"

    @property
    def alive(self) -> bool:
        """Whether the head's first process runs; it ends by itself when one of Ray's own dies."""
        if self._child is not None:
            self._child.poll()  # takes the zombie away
        leader = self._leader()
        return leader is not None and leader.alive

    def ready(self) -> bool:
        """Whether Ray answers to our token and has a node to run on."""
        token = self._home.ray_token_file.read_text().strip()
        try:
            reply = httpx.get(
                f"{self.address}/api/v0/nodes",
                headers={"Authorization": f"Bearer {token}"},
                timeout=5,
                trust_env=False,  # a proxy for the internet has no business on the loopback
            )
            nodes = reply.raise_for_status().json()["data"]["result"]["result"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False
        return any(node.get("state") == "ALIVE" for node in nodes)

    def settle(self) -> str:
        """Fix the address before it is told to anybody: on other ports, if the kept ones were taken."""
        if not self.alive:
            self.stop()  # what a killed head may have left, which would hold its ports
            if not self.ports.free():
                self._choose_ports(avoid=self.ports.base)
        return self.address

    def start(self) -> bool:
        """Start the head, or take over the one that runs; does not wait. Returns whether it was there."""
        if self.alive:
            return True
        self.stop()  # what a killed head may have left
        ports = self.ports
        if taken := ports.taken():
            raise PortTaken(f"Ray's ports {', '.join(map(str, taken))} were taken by somebody else meanwhile")
        temp_dir = _short_folder()
        mark = secrets.token_hex(8)
        with self.log_file.open("wb") as log:
            self._child = subprocess.Popen(
                self._command(ports, temp_dir),
                env=self._environment(ports, mark),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._home.path,
                start_new_session=True,  # a terminal's ctrl-C is for the service, not for Ray
            )
        leader = ProcessId.of(self._child.pid)
        self._home.write(
            "ray.json",
            {
                **(leader.to_dict() if leader else {"pid": self._child.pid, "started": time.time()}),
                "mark": mark,
                "base": ports.base,
                "temp_dir": str(temp_dir),
            },
        )
        return False

    def why(self) -> str:
        """The end of Ray's log, for people to read."""
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return "\n".join([f"the end of {self.log_file}:", *lines[-LOG_LINES:]])

    def stop(self) -> list[ProcessId]:
        """End every process of the head and of the jobs on it. Returns what would not go: usually nothing."""
        record = self._home.read("ray.json")
        if record is None:
            return []
        leader, mark = ProcessId.from_dict(record), str(record["mark"])
        left = end_all(lambda: belonging_to(leader, mark), grace_s=STOP_GRACE_S)
        if self._child is not None:
            self._child.poll()
        if not left:
            shutil.rmtree(record["temp_dir"], ignore_errors=True)
            self._home.forget("ray.json")
        return left

    def _leader(self) -> ProcessId | None:
        record = self._home.read("ray.json")
        return ProcessId.from_dict(record) if record else None

    def _choose_ports(self, avoid: int | None = None) -> RayPorts:
        ports = choose_ray_ports(avoid=[] if avoid is None else [avoid])
        self._home.write("ports.json", {**(self._home.read("ports.json") or {}), "ray": ports.base})
        return ports

    def _command(self, ports: RayPorts, temp_dir: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            "--disable-usage-stats",
            *(f"--{option}={port}" for option, port in ports.named.items()),
            *(f"--node-ip-address={LOOPBACK}", f"--dashboard-host={LOOPBACK}", f"--temp-dir={temp_dir}"),
            "--include-dashboard=true",
            "--include-log-monitor=false",  # the agent of an attempt reads its workers' output itself
            *([f"--num-cpus={self._cpus:g}"] if self._cpus is not None else []),
        ]

    def _environment(self, ports: RayPorts, mark: str) -> dict[str, str]:
        # What Ray has in its environment, workers and so the users' code have too: ours stays out of it.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTRAIN_", "RAY_"))}
        return {
            **inherited,
            **ports.environment,
            MARK: mark,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._home.ray_token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Despite its name: off means "this machine only" on any system, and binds to the loopback.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            # A job's processes have an environment of their own: idle ones started ahead serve nobody.
            "RAY_prestart_worker_first_driver": "false",
            # A dead actor's children die too, also those in a session of their own, which process groups
            # (Ray's other way, and the default: with both on, this one does nothing) would miss.
            "RAY_process_group_cleanup_enabled": "false",
            "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
        }


def _short_folder() -> Path:
    """A new folder of mode 0700 whose path leaves room for Ray's sockets."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(parent)) + len("/et-12345678") <= LONGEST_TEMP_DIR and os.access(parent, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="et-", dir=parent))
    raise RayFailed(
        f"no temporary folder with a path short enough for Ray's sockets (at most {LONGEST_TEMP_DIR} bytes): "
        f"set TMPDIR to a shorter one than {tempfile.gettempdir()}"
    )

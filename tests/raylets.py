"""More nodes for a Ray head of the tests: raylets on this machine, each killed as a whole machine is."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil

from elastrain.service.up_home import Home
from elastrain.service.up_ports import LOOPBACK, RayPorts
from elastrain.service.up_processes import MARK

# As ray.cluster_utils does it: `ray start` takes the machine's outer address for the loopback's.
NODE = """
import json, sys, time
from ray._private.node import Node
from ray._private.parameter import RayParams
about = json.loads(sys.argv[1])
ports = {"min_worker_port": 0, "max_worker_port": 0, "dashboard_port": None}
node = Node(RayParams(**about, **ports, include_log_monitor=False), head=False, spawn_reaper=False)
print(node.node_id, flush=True)
time.sleep(3600)
"""
STORE_BYTES = 100 * 2**20
# what the head has as well, see up_ray.py: whatever dies takes along what it has started
KNOBS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_process_group_cleanup_enabled": "false",
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",
}


class Raylet:
    """One more node of the head of a HOME. It ends with the head, by its mark, if not before."""

    def __init__(
        self,
        home: Path,
        *,
        cpus: float = 1.0,
        resources: dict[str, float] | None = None,
        memory: int | None = None,  # bytes; None: what Ray finds
        labels: dict[str, str] | None = None,
    ) -> None:
        kept = Home(home)
        record, ports = json.loads((home / "ray.json").read_text()), kept.read("ports.json")
        assert ports is not None
        self.gcs = f"{LOOPBACK}:{RayPorts(int(ports['ray'])).gcs}"
        about = {
            "gcs_address": self.gcs,
            "node_ip_address": LOOPBACK,
            "num_cpus": cpus,
            "num_gpus": 0,
            "resources": resources or {},
            "object_store_memory": STORE_BYTES,
            "memory": memory,
            "labels": labels or {},
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTRAIN_", "RAY_"))}
        self._environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(kept.ray_token_file)}
        self._address = f"http://{LOOPBACK}:{RayPorts(int(ports['ray'])).dashboard}"
        self._token = kept.ray_token_file.read_text().strip()
        self._node = subprocess.Popen(
            [sys.executable, "-c", NODE, json.dumps(about)],
            env={**inherited, **KNOBS, **self._environment, MARK: record["mark"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._node.stdout is not None
        self.id = self._node.stdout.readline().strip()
        assert self.id, "the node did not start"

    def joined(self, timeout_s: float = 60.0) -> Raylet:
        """Wait until the head has it among its nodes."""
        deadline = time.monotonic() + timeout_s
        while self.id not in self._alive():
            assert self._node.poll() is None and time.monotonic() < deadline, "the node did not join"
            time.sleep(0.1)
        return self

    def pids(self) -> set[int]:
        """All processes of this node: Ray's own, and what runs on it."""
        return {process.pid for process in self._family()}

    def kill(self) -> None:
        """As if the machine had lost its power: everything at once, nobody says good-bye."""
        family = self._family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()  # nobody sees another one die first
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._node.wait(20)
        if self._node.stdout is not None:
            self._node.stdout.close()
        psutil.wait_procs(family, timeout=20)

    def gone(self, timeout_s: float = 60.0) -> None:
        """Wait until the head has noticed: until then it counts what the node had, and may use it."""
        deadline = time.monotonic() + timeout_s
        while self.id in self._alive():
            assert time.monotonic() < deadline, "the head still takes the node for alive"
            time.sleep(0.1)

    def drain(self, seconds: int) -> None:
        """Tell Ray that the node will be taken away."""
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "drain-node"),
                *(f"--address={self.gcs}", f"--node-id={self.id}"),
                *("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"),
                f"--deadline-remaining-seconds={seconds}",
            ],
            env={**os.environ, **KNOBS, **self._environment},  # or it asks the outer address
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def _family(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._node.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _alive(self) -> set[str]:
        reply = httpx.get(
            f"{self._address}/api/v0/nodes",
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=10,
            trust_env=False,
        )
        nodes = reply.raise_for_status().json()["data"]["result"]["result"]
        return {node["node_id"] for node in nodes if node["state"] == "ALIVE"}

"""Ports: chosen once, kept in HOME, and never shared with another elastrain on this machine.

The service has one port, which people bookmark. Ray needs a dozen, and a range for its workers: they are one
aligned block, so that a running head, which holds the first ports of its block, keeps others off all of it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

LOOPBACK = "127.0.0.1"
FIRST_CHOICES = range(8470, 8480)  # for the service: easy to remember
BLOCK = 512  # ports per head
BLOCKS = range(20480, 32768, BLOCK)  # above Ray's default worker ports, below what systems give to clients


class PortTaken(Exception):
    """A port that must be had is somebody else's. The message names it and, if that can be known, by whom."""


@dataclass(frozen=True)
class RayPorts:
    """The ports of one head: `base` is the first of its block."""

    base: int

    @property
    def gcs(self) -> int:
        return self.base

    @property
    def dashboard(self) -> int:
        return self.base + 1

    @property
    def workers(self) -> tuple[int, int]:
        """First and last port that workers and drivers listen on."""
        return self.base + 32, self.base + BLOCK - 1

    @property
    def named(self) -> dict[str, int]:
        """`ray start` option (without dashes in front) -> port."""
        first, last = self.workers
        return {
            "port": self.gcs,
            "dashboard-port": self.dashboard,
            "node-manager-port": self.base + 2,
            "object-manager-port": self.base + 3,
            "dashboard-agent-listen-port": self.base + 4,
            "dashboard-agent-grpc-port": self.base + 5,
            "runtime-env-agent-port": self.base + 6,
            "metrics-export-port": self.base + 7,
            "ray-client-server-port": self.base + 8,  # it cannot be switched off, only moved
            "min-worker-port": first,
            "max-worker-port": last,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The two ports that Ray takes from the environment only."""
        return {"AUTOSCALER_METRIC_PORT": str(self.base + 9), "DASHBOARD_METRIC_PORT": str(self.base + 10)}

    @property
    def fixed(self) -> range:
        return range(self.base, self.base + 11)

    def taken(self) -> list[int]:
        """Those of the fixed ports that nobody could listen on now."""
        return [port for port in self.fixed if not is_free(port)]

    def free(self) -> bool:
        return not self.taken()


def choose_ray_ports(avoid: Iterable[int] = ()) -> RayPorts:
    """A block whose fixed ports are all free, at random, so that two first starts rarely meet.

    Raises PortTaken if there is none.
    """
    blocks = [base for base in BLOCKS if base not in set(avoid)]
    random.shuffle(blocks)
    for base in blocks:
        if (ports := RayPorts(base)).free():
            return ports
    raise PortTaken(
        f"no free block of {BLOCK} ports for Ray between {BLOCKS.start} and {BLOCKS.stop - 1}: "
        "stop an elastrain that you no longer need (`elastrain down`)"
    )


def choose_service_port(host: str) -> int:
    """The first free of the easy ones, else any free port."""
    for port in FIRST_CHOICES:
        if is_free(port, host):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on this port now."""
    try:
        listen(port, host).close()
    except PortTaken:
        return False
    return True


def listen(port: int, host: str = LOOPBACK) -> socket.socket:
    """A bound socket. Raises PortTaken, naming who has the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
    try:
        bound.bind((host, port))
        bound.listen(256)
    except OSError as error:
        bound.close()
        raise PortTaken(f"port {port} on {host} is taken{_by_whom(port)}: {error.strerror}") from error
    return bound


def _by_whom(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            local = connection.laddr
            if connection.status == psutil.CONN_LISTEN and local and local.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass  # other users' sockets are not ours to see
    return ""

"""A network of the test's own: every worker on a machine of its own, as far as packets can tell. Needs root.

    root namespace (the driver) ──┐
    worker w0's namespace ────────┤ hub: a namespace that routes, and loses or delays what it is told to
    worker w1's namespace ────────┘

Addresses are of 198.18.0.0/15, which is set aside for such tests (RFC 2544). Nothing is closed when a line is
cut: packets vanish, as they do when a switch dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from elastrain.trainers.launching.launcher import WorkerStart
from engine.rough_launcher import RoughLauncher

CLONE_NEWNET = 0x40000000  # <linux/sched.h>
NAMESPACES = Path("/run/netns")
DRIVER = "driver"

_numbers = itertools.count()


def require_network() -> None:
    """Skip the test where namespaces cannot be had, saying why. Installs iproute2 if it can."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None and shutil.which("apt-get") is not None:
        install = "apt-get update -qq; apt-get install -y -qq iproute2"
        subprocess.run(["sh", "-c", install], check=False, capture_output=True)
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip`, and iproute2 could not be installed")
    try:
        ip("netns", "add", "elprobe")
        ip("-n", "elprobe", "rule", "add", "pref", "9", "to", "198.18.0.1", "blackhole")
    except Refused as error:
        pytest.skip(f"this kernel gives no network namespaces: {error}")
    finally:
        with contextlib.suppress(Refused):
            ip("netns", "del", "elprobe")


class Refused(Exception):
    """A command of iproute2 failed."""


def ip(*words: str, tool: str = "ip") -> None:
    done = subprocess.run([tool, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(f"{tool} {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """Lines by name: a worker, or DRIVER. Use it as a context: nothing of it stays."""

    def __init__(self) -> None:
        number = next(_numbers)  # what was there before may be on its way out still
        self.prefix = f"el{os.getpid()}x{number}"
        self.hub = f"{self.prefix}-hub"
        # a part of the test range for each network: 2,048 addresses, four to a line
        base = int(ipaddress.ip_address("198.18.0.0")) + (os.getpid() + number) % 64 * 2048
        self._nets = ipaddress.ip_network((base, 21)).subnets(new_prefix=30)
        self.whole = f"{ipaddress.ip_address(base)}/21"
        self.addresses: dict[str, str] = {}
        self._relays: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Network:
        sweep()
        try:
            ip("netns", "add", self.hub)
            for setting in ("ip_forward=1", "conf/all/rp_filter=0", "conf/default/rp_filter=0"):
                name, _, value = setting.partition("=")
                write = f"echo {value} > /proc/sys/net/ipv4/{name}"
                ip("netns", "exec", self.hub, "sh", "-c", write)
            gateway = self._line(DRIVER, None)
            ip("route", "add", self.whole, "via", gateway, "dev", self.prefix)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Veth pairs and routes go with their namespaces."""
        for relay in self._relays:
            relay.kill()
            relay.communicate()
        for namespace in NAMESPACES.glob(f"{self.prefix}-*"):
            with contextlib.suppress(Refused):
                ip("netns", "del", namespace.name)

    # ---- lines ------------------------------------------------------------------------------

    def namespace(self, worker: str) -> str:
        """The worker's own namespace, made if need be."""
        name = f"{self.prefix}-{worker}"
        if worker not in self.addresses:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            gateway = self._line(worker, name)
            ip("-n", name, "route", "add", "default", "via", gateway)
        return name

    def _line(self, who: str, namespace: str | None) -> str:
        """A pair of interfaces between the hub and a namespace; -> the hub's address."""
        gateway, own = (f"{a}" for a in next(self._nets).hosts())
        inside = ("-n", namespace) if namespace else ()
        device = "eth0" if namespace else self.prefix
        ip(*inside, "link", "add", device, "type", "veth", "peer", "name", who, "netns", self.hub)
        ip(*inside, "addr", "add", f"{own}/30", "dev", device)
        ip(*inside, "link", "set", device, "up")
        ip("-n", self.hub, "addr", "add", f"{gateway}/30", "dev", who)
        ip("-n", self.hub, "link", "set", who, "up")
        self.addresses[who] = own
        return gateway

    # ---- what happens to them ---------------------------------------------------------------

    def cut(self, one: str, other: str | None = None) -> None:
        """Packets between the two vanish, both ways; without `other`, all of `one`. Raises Refused if they do
        already."""
        for rule in self._rules(one, other):
            ip("-n", self.hub, "rule", "add", "pref", "10", *rule, "blackhole")

    def cut_one_way(self, source: str, target: str) -> None:
        ip("-n", self.hub, "rule", "add", "pref", "10", *self._from_to(source, target), "blackhole")

    def mend(self, one: str, other: str | None = None) -> None:
        """Packets pass again; those under way were lost."""
        for rule in self._rules(one, other):
            with contextlib.suppress(Refused):  # it was not cut
                ip("-n", self.hub, "rule", "del", "pref", "10", *rule, "blackhole")

    def _rules(self, one: str, other: str | None) -> list[tuple[str, ...]]:
        if other is None:
            return [("from", self.addresses[one]), ("to", self.addresses[one])]
        return [self._from_to(one, other), self._from_to(other, one)]

    def _from_to(self, source: str, target: str) -> tuple[str, ...]:
        return ("from", self.addresses[source], "to", self.addresses[target])

    def slow(self, worker: str, *, rate: str, delay_ms: int) -> None:
        """A thin and long line: `rate` (as tc writes it) and `delay_ms`, each way."""
        ends = [(self.hub, worker), (self.namespace(worker), "eth0")]
        for namespace, device in ends:
            limit = ("tbf", "rate", rate, "burst", "32kbit", "latency", "400ms")
            ip("-n", namespace, "qdisc", "add", "dev", device, "root", *limit, tool="tc")
        self._delay(worker, delay_ms)

    def _delay(self, worker: str, delay_ms: int) -> None:
        """Everything from and to the worker goes through a process that holds it back. Not every kernel has
        tc's netem, and this needs only /dev/net/tun."""
        number = str(1000 + len(self._relays))
        device = f"d{number}"
        hub = ("-n", self.hub)
        ip(*hub, "tuntap", "add", "dev", device, "mode", "tun")
        ip(*hub, "link", "set", device, "up")
        ip(*hub, "route", "add", "default", "dev", device, "table", number)
        ip(*hub, "rule", "add", "pref", "20", "iif", device, "lookup", "main")
        ip(*hub, "rule", "add", "pref", "30", "iif", worker, "lookup", number)
        ip(*hub, "rule", "add", "pref", "30", "to", self.addresses[worker], "lookup", number)
        command = ["ip", "netns", "exec", self.hub, sys.executable, str(Path(__file__).with_name("delay.py"))]
        relay = subprocess.Popen([*command, device, str(delay_ms)], stdout=subprocess.PIPE)
        self._relays.append(relay)
        assert relay.stdout is not None
        assert relay.stdout.readline() == b"ready\n"


def sweep() -> None:
    """Remove what tests that were killed have left."""
    for namespace in NAMESPACES.glob("el*-*") if NAMESPACES.exists() else ():
        found = re.match(r"el(\d+)x", namespace.name)
        if found and not Path(f"/proc/{found[1]}").exists():
            with contextlib.suppress(Refused):
                ip("netns", "del", namespace.name)


class ApartLauncher(RoughLauncher):
    """Every worker in a network namespace of its own."""

    def __init__(self, logs: Path, network: Network) -> None:
        super().__init__(logs)
        self.network = network

    def _place(self, start: WorkerStart) -> Callable[[], None]:
        return partial(_enter, self.network.namespace(start.worker))


def _enter(namespace: str) -> None:
    """Move this process into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (NAMESPACES / namespace).open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")

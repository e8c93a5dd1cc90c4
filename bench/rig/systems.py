"""The systems that are compared: how each one is started, grown, and where its workers are.

Everything that is measured works on the commits that a run writes down, so it is the same for all of them.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psutil

from peers.ft import LIGHTHOUSE
from rig.run import BENCH, Run


class System(Protocol):
    """`setting` is what the processes of its runs find; with `workers` and `ckpt_every` beside it."""

    name: str
    setting: dict[str, Any]

    def start(self, run: Run) -> None:
        """Start run.setting["workers"] workers; returns at once."""

    def workers(self, run: Run) -> list[int]:
        """Pids of the workers that live, in the order of their ranks."""

    def decoy(self, run: Run) -> None:
        """Start one more process in the way of its workers, that builds what they build, and ends."""


class Grows(System, Protocol):
    """A system that takes in one more worker while it trains."""

    def grow(self, run: Run) -> None: ...


def _by_name(run: Run) -> list[int]:
    """Workers that have logged `ready`, and live, by the name that they log under: their rank."""
    live = set(run.pids())
    found = {e["who"]: e["pid"] for e in run.events("ready") if e["pid"] in live}
    return [found[name] for name in sorted(found)]


def _decoy(run: Run) -> None:
    run.python("decoy.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Limit:
    """Forward and backward alone, on all workers at once, which do not talk to each other."""

    name: str = "forward and backward"
    setting: dict[str, Any] = field(default_factory=dict)

    def start(self, run: Run) -> None:
        count = run.setting["workers"]
        for rank in range(count):
            run.python("limit.py", rank, run.setting.get("of", count))

    workers = staticmethod(_by_name)
    decoy = staticmethod(_decoy)


@dataclass
class Torchrun:
    """torchrun and DDP, in its best set-up for a restart: one agent, a fresh store after each.

    With torch's default, a shared store, a restarted group finds the addresses of the dead and loses 5 s.
    """

    name: str = "torchrun"
    setting: dict[str, Any] = field(default_factory=lambda: {"variant": "plain"})

    def start(self, run: Run) -> None:
        run.start(
            "torchrun",
            "--standalone",
            f"--nproc-per-node={run.setting['workers']}",
            "--max-restarts=99",
            _peer("ddp.py"),
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1,
        )

    workers = staticmethod(_by_name)
    decoy = staticmethod(_decoy)


@dataclass
class TorchrunElastic:
    """One torchrun agent per worker, which is how torchrun grows. The first agent holds the rendezvous."""

    name: str = "torchrun elastic"
    setting: dict[str, Any] = field(default_factory=lambda: {"variant": "plain"})

    def start(self, run: Run) -> None:
        run.setting["port"] = free_port()
        for _ in range(run.setting["workers"]):
            self.grow(run)

    def grow(self, run: Run) -> None:
        run.start(
            "torchrun",
            "--nnodes=1:4",
            "--nproc-per-node=1",
            "--max-restarts=99",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{run.setting['port']}",
            "--rdzv-id=bench",
            "--local-addr=127.0.0.1",
            "--rdzv-conf=last_call_timeout=1",
            _peer("ddp.py"),
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1,
        )

    workers = staticmethod(_by_name)
    decoy = staticmethod(_decoy)


class Torchft:
    """torchft 0.2, tuned: a lighthouse, and replicas that are started again the moment they die."""

    name = "torchft"

    def __init__(self) -> None:
        self.setting: dict[str, Any] = {}
        self._replicas: dict[int, subprocess.Popen[bytes]] = {}
        self._address = ""

    def start(self, run: Run) -> None:
        self._replicas = {}
        port = free_port()
        options = [part for name, value in LIGHTHOUSE.items() for part in (f"--{name}", value)]
        run.start("torchft_lighthouse", "--bind", f"127.0.0.1:{port}", *options, RUST_LOG="warn")
        self._address = f"http://127.0.0.1:{port}"
        for _ in range(run.setting["workers"]):
            self.grow(run)
        over = threading.Event()
        keeper = threading.Thread(target=self._restart, args=(run, over), daemon=True)
        keeper.start()
        run.closing += [over.set, keeper.join]

    def grow(self, run: Run) -> None:
        self._begin(run, len(self._replicas))

    def _begin(self, run: Run, number: int) -> None:
        self._replicas[number] = run.python(
            "ft.py", number, TORCHFT_LIGHTHOUSE=self._address, RUST_LOG="warn"
        )

    def _restart(self, run: Run, over: threading.Event) -> None:
        while not over.wait(0.02):
            for number, process in list(self._replicas.items()):
                code = process.poll()
                if code is not None and code > 0:
                    run.fail(f"replica {number} ended with exit code {code}")
                    return
                if code is not None:
                    self._begin(run, number)

    workers = staticmethod(_by_name)
    decoy = staticmethod(_decoy)


class RayTrain:
    """Ray Train V2 with DDP, tuned: it looks for dead workers every 0.1 s, and uploads checkpoints aside."""

    name = "Ray Train"

    def __init__(self) -> None:
        self.setting: dict[str, Any] = {"elastic": False}

    def start(self, run: Run) -> None:
        temporary = Path(tempfile.mkdtemp(prefix="r-"))  # short: Ray puts its sockets there
        run.litter.append(temporary)
        (temporary / "ray").mkdir()  # for the address of a cluster, which would else be everybody's
        environment = {
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": temporary,
        }
        run.python("on_ray.py", temporary, **environment)

    workers = staticmethod(_by_name)
    decoy = staticmethod(_decoy)


class RayTrainElastic(RayTrain):
    """The same with one node per worker, which is how Ray Train grows; it considers that every second."""

    name = "Ray Train elastic"

    def __init__(self) -> None:
        self.setting = {"elastic": True}

    def grow(self, run: Run) -> None:
        (run.folder / "grow").touch()


class Ours:
    """elastrain's engine: an attempt in a driver process, workers as local processes or on a Ray head."""

    DEFAULT: ClassVar[dict[str, Any]] = {"microbatch": 6, "spares": 0, "spec": {}, "ray": False}

    def __init__(self, name: str = "elastrain", **setting: Any) -> None:
        self.name, self.setting = name, {**self.DEFAULT, **setting}

    def start(self, run: Run) -> None:
        run.python("ours.py")
        if self.setting["ray"]:
            run.closing.append(lambda: run.litter.extend(_ray_folder(run)))

    def grow(self, run: Run) -> None:
        self.scale(run, run.setting["workers"] + 1)

    def scale(self, run: Run, workers: int) -> None:
        self.order(run, f"scale {workers}")

    def order(self, run: Run, order: str) -> None:
        with (run.folder / "orders").open("a") as file:
            file.write(order + "\n")

    def decoy(self, run: Run) -> None:
        self.order(run, "decoy")

    def workers(self, run: Run) -> list[int]:
        newest = {e["worker"]: e for e in run.events("worker")}
        active = [e for e in newest.values() if e["state"] == "active" and e["rank"] is not None]
        return [e["worker_pid"] for e in sorted(active, key=lambda e: e["rank"])]


class OursSplit(Ours):
    """With the model of each worker split among processes, all of which count."""

    def __init__(self, name: str, processes: int, split: str = "fully_shard", **setting: Any) -> None:
        super().__init__(name, **setting)
        said = self.setting["spec"]
        most = {"min": 1, "max": 12 // self.setting["microbatch"]}
        workers = {**said.get("workers", most), "processes": processes, "split": split}
        self.setting["spec"] = {**said, "workers": workers}

    def workers(self, run: Run) -> list[int]:
        leads = map(psutil.Process, super().workers(run))
        return [p.pid for lead in leads for p in (lead, *lead.children())]


def _ray_folder(run: Run) -> list[Path]:
    record = run.folder / "home" / "ray.json"
    return [Path(json.loads(record.read_text())["temp_dir"])] if record.exists() else []


def _peer(script: str) -> Path:
    return BENCH / "peers" / script

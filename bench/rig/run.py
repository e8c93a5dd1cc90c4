"""One run of one system: its folder, its processes, its time limit, and an end that leaves nothing behind.

Every process of a run carries BENCH_RUN={folder} in its environment, also those that it starts itself. To
stop a run is to kill exactly these, by pid. No torch.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rig.events import RUN, Event, Reader

BENCH = Path(__file__).resolve().parents[1]
TICK = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.01
now = time.monotonic
T = TypeVar("T")


class Run:
    """Use as a context manager. `setting` is what the processes of the run find in setting.json."""

    def __init__(self, name: str, limit_s: float = 180.0, **setting: Any) -> None:
        self.name, self.setting = name, setting
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        (self.folder / "setting.json").write_text(json.dumps(setting))
        self.began, self.deadline = now(), now() + limit_s
        self.reader = Reader(self.folder)
        self.events = self.reader.events
        self.closing: list[Callable[[], Any]] = []
        self.litter: list[Path] = []  # folders elsewhere that go with the run
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failed = ""
        self._window: tuple[float, float, float] | None = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for close in self.closing:
            close()
        if kind is not None and kind is not KeyboardInterrupt:
            print(self.tail(), file=sys.stderr)
        self.stop()

    # ---- processes --------------------------------------------------------------------------

    def start(self, *command: object, **environment: object) -> subprocess.Popen[bytes]:
        """A process of the run; its output goes to a file in the run's folder."""
        places = [str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])]
        # torchrun and torchft_lighthouse are installed beside the interpreter
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        fixed = {
            RUN: self.folder,
            "PATH": tools,
            "PYTHONPATH": os.pathsep.join(places),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TP_SOCKET_IFNAME": "lo",
        }
        foreign = ("RAY_ADDRESS", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
        whole = {k: v for k, v in os.environ.items() if k not in foreign} | fixed | environment
        with (self.folder / f"output-{len(self._processes)}.txt").open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                env={k: str(v) for k, v in whole.items()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )
        self._processes.append(process)
        return process

    def python(self, script: str, *arguments: object, **environment: object) -> subprocess.Popen[bytes]:
        """script: a file of bench/peers, by name."""
        return self.start(sys.executable, BENCH / "peers" / script, *arguments, **environment)

    def pids(self) -> list[int]:
        """Processes of the run that live, whoever started them."""
        mark, found = f"{RUN}={self.folder}".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # gone, or somebody else's
        return found

    def fail(self, why: str) -> None:
        """There is nothing more to wait for."""
        self._failed = why

    def kill(self, pid: int) -> float:
        """SIGKILL; -> when."""
        os.kill(pid, signal.SIGKILL)
        return now()

    def stop(self) -> None:
        """Kill what still lives, by pid, and remove the folder."""
        for _ in range(30):
            pids = self.pids()
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for process in self._processes:
                process.poll()
            if not pids:
                break
            time.sleep(0.1)
        for folder in (self.folder, *self.litter):
            shutil.rmtree(folder, ignore_errors=True)

    def tail(self, lines: int = 15, newest: int = 4) -> str:
        """The last lines of the files that were written last."""
        files = sorted(
            [*self.folder.glob("output-*.txt"), *self.folder.glob("logs/*.log")],
            key=lambda file: (file.stat().st_size > 0, file.stat().st_mtime),
        )[-newest:]
        return "\n".join(
            f"--- {self.name}: {file.name}\n"
            + "\n".join(file.read_text(errors="replace").splitlines()[-lines:])
            for file in files
        )

    # ---- waiting ----------------------------------------------------------------------------

    def commits(self) -> list[Event]:
        return self.events("commit")

    def wait(self, look: Callable[[], T | None], what: str) -> T:
        """Until `look` sees something. Raises TimeoutError at the run's deadline."""
        while not (found := look()):
            if self._processes[0].poll() is not None:
                self.fail("its first process ended")
            if self._failed:
                raise RuntimeError(f"no {what}: {self._failed}")
            if now() > self.deadline:
                last = self.commits()[-2:]
                raise TimeoutError(f"no {what} in time; last commits: {last}")
            time.sleep(LOOK_S)
        return found

    def wait_step(self, step: int, world: int | None = None) -> Event:
        """The first commit of that step or a later one, with so many workers."""

        def seen() -> Event | None:
            fits = (c for c in self.commits() if c["step"] >= step and world in (None, c["world"]))
            return next(fits, None)

        return self.wait(seen, f"step {step} with {world or 'any'} workers")

    def wait_more(self, steps: int, world: int | None = None) -> Event:
        """`steps` more than the newest."""
        return self.wait_step(self.commits()[-1]["step"] + steps, world)

    # ---- who else uses the machine ----------------------------------------------------------

    def others(self) -> float:
        """Cores that processes of others used since the last call; 0 at the first."""
        current = (now(), busy_s(), self._own_s())
        before, self._window = self._window, current
        if before is None:
            return 0.0
        spent = (current[1] - before[1]) - (current[2] - before[2])
        return round(max(0.0, spent) / (current[0] - before[0]), 2)

    def _own_s(self) -> float:
        """CPU seconds of the run: of its processes, and of the children that they or we have waited for."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        us = resource.getrusage(resource.RUSAGE_SELF)
        return sum(map(cpu_s, self.pids())) + ended.ru_utime + ended.ru_stime + us.ru_utime + us.ru_stime


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children that it waited for; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICK


def loopback_bytes() -> int:
    """Received by the loopback device so far. It is everybody's: only a quiet machine gives a good figure."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[0])
    return 0


def anonymous_mb(pid: int | str) -> float:
    """Memory that a process has for itself: what it allocated, without the files (libraries) that it maps."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e3 * 1.024
    return 0.0


def busy_s() -> float:
    """Busy CPU seconds of the whole machine."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    values = list(map(int, fields))
    return (sum(values) - values[3] - values[4]) / TICK


def wait_quiet(limit_s: float, below: float = 0.25) -> bool:
    """Wait for an idle machine (fewer busy cores than `below` over a second); False if it never was."""
    end = now() + limit_s
    while now() < end:
        busy, at = busy_s(), now()
        time.sleep(1.0)
        if (busy_s() - busy) / (now() - at) < below:
            return True
    return False

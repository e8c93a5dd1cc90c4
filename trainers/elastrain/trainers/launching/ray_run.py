"""One group as one Ray Train run: its resources, its processes, and how they ended."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from elastrain.trainers.launching.launcher import GroupStart
from elastrain.trainers.launching.processes import cause, end_process
from elastrain.trainers.launching.ray_worker import Files, supervise

log = logging.getLogger(__name__)

NODE_LABEL = "ray.io/node-id"  # Ray gives it to every node


class Run:
    """`start` it, then look at `over`; the other calls may come at any time and from any thread."""

    def __init__(
        self,
        group: GroupStart,
        files: Files,
        node: str,
        resources: Mapping[str, float],
        name: str,
        tag: str,
    ) -> None:
        """node: Ray's id of the node to pin the group to. resources: of each worker, in Ray's names.
        tag: of the attempt, see sweep.py."""
        self.group = group.group
        self.workers = [worker.worker for worker in group.workers]
        self._files = files
        self._node = node
        self._resources = dict(resources)
        self._name = name
        self._error: Exception | None = None
        self._killed = False
        self._unnamed = set(self.workers)  # whose actors `new_actors` has not told yet
        self._thread = threading.Thread(target=self._fit, daemon=True, name=f"run {self.group}")
        for worker in group.workers:
            files.write(f"{worker.worker}.start", {**worker.to_dict(), "node": node, "tag": tag})

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._thread.ident is not None

    @property
    def begun(self) -> bool:
        """Whether every worker process was there, or never will be."""
        return self.over or all(self._files.read(f"{worker}.pid") for worker in self.workers)

    def new_actors(self) -> list[dict[str, Any]]:
        """{worker, actor, resources}: of Ray's actors that came to hold a worker, each one once."""
        found = []
        for worker in sorted(self._unnamed) if self.started else ():
            if process := self._files.read(f"{worker}.pid"):
                self._unnamed.discard(worker)
                found.append({"worker": worker, "actor": process["actor"], "resources": self._resources})
        return found

    @property
    def over(self) -> bool:
        """Whether the Ray Train run has ended, or could not be started."""
        return self.started and not self._thread.is_alive()

    def start(self) -> None:
        """Begin, unless it was stopped before; returns at once."""
        self._thread.start()

    def stop(self, *, kill: bool) -> None:
        """No process of this group begins from now on; with `kill`, those that run are ended."""
        self._files.write(f"{self.group}.stop", {})
        if kill:
            self._killed = True
            self._kill()

    def wait(self, timeout_s: float) -> bool:
        """Whether the run ended within the time. In a killed one, processes that still begin are ended."""
        deadline = time.monotonic() + timeout_s
        while not self.over and time.monotonic() < deadline:
            if self._killed:
                self._kill()
            time.sleep(0.05)
        return self.over

    def end(self) -> dict[str, str]:
        """See that no process of the ended run is left; -> how each worker ended, known facts only."""
        self._kill()
        return {worker: self._cause(rank, worker) for rank, worker in enumerate(self.workers)}

    def _fit(self) -> None:
        if self._files.read(f"{self.group}.stop") is not None:
            return
        # The base of TorchTrainer: without a process group of torch's own, since ours cross the runs.
        trainer = DataParallelTrainer(
            supervise,
            train_loop_config={
                "folder": str(self._files.folder),
                "group": self.group,
                "workers": self.workers,
            },
            scaling_config=ScalingConfig(
                num_workers=len(self.workers),
                resources_per_worker=self._resources,
                label_selector={NODE_LABEL: self._node},  # type: ignore[call-arg]  # typed as Train V1
            ),
            run_config=RunConfig(
                name=f"{self._name}-{self.group}",
                storage_path=str(self._files.folder / "train"),
                failure_config=FailureConfig(
                    max_failures=0,
                    controller_failure_limit=0,  # type: ignore[call-arg]  # typed as Train V1
                ),
            ),
        )
        try:
            trainer.fit()
        except Exception as error:  # whatever it is, it is the end of the group, and a fact of it
            self._error = error

    def _kill(self) -> None:
        for worker in self.workers:
            if process := self._files.read(f"{worker}.pid"):
                end_process(process["pid"], process["started"])

    def _cause(self, rank: int, worker: str) -> str:
        ended = self._files.read(f"{worker}.exit")
        if ended and not (ended["code"] == -signal.SIGKILL and self._another_failed(rank)):
            return cause(ended["code"])
        began = self._files.read(f"{worker}.pid") is not None
        if isinstance(self._error, WorkerGroupError):
            if (
                began and rank in self._error.worker_failures
            ):  # but no exit code: its parent did not see the end
                return "its process vanished: Ray's process that held its resources ended"
            return "ended with its group" if began else "not started: its group ended"
        if self._error is None:
            return "not started"
        return f"not started: {headline(self._error)}"

    def _another_failed(self, rank: int) -> bool:
        """Whether the group was ended for somebody else: then who is in it is killed, sometimes in sight."""
        failed = self._error.worker_failures if isinstance(self._error, WorkerGroupError) else {}
        return bool(failed) and rank not in failed


def headline(error: Exception) -> str:
    """The last line that says something: Ray puts its own words first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__

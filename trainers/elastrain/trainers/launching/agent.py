"""The agent: one per attempt and node. It starts the node's groups, follows their output, ends processes.

It is a Ray actor without resources that outlives every worker of its node; if it dies, its Ray Train runs die
with it, since it owns them. It is made an actor by the launcher, which asks it in turn for what happened.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray
from elastrain.trainers.launching.launcher import GroupStart, WorkerStart
from elastrain.trainers.launching.logs import SHIP_EVERY_S, LogShipper
from elastrain.trainers.launching.processes import make_scratch
from elastrain.trainers.launching.ray_worker import Files
from elastrain.trainers.launching.sweep import TAG, sweep
from elastrain.trainers.storage import open_storage

if TYPE_CHECKING:
    from elastrain.trainers.launching.ray_run import Run

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.1
CLOSE_S = 8.0  # for the runs to end by themselves, once their processes are gone

# How Ray Train behaves in an agent. Every helper that it need not start is a second less to the first step.
KNOBS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon an ended worker ends its run
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # membership is the coordinator's business
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}

Update = dict[str, Any]


class Agent:
    """Called by the launcher from several threads at once."""

    def __init__(
        self, title: str, job: str, attempt: int, storage_url: str, storage_options: Mapping[str, str]
    ) -> None:
        """title: the job's name, for people."""
        self._tag = os.environ[TAG]  # ours, and so that of whatever we start
        self._name = f"{title}-{job}-{attempt}"  # of its Ray Train runs
        self._node = ray.get_runtime_context().get_node_id()
        self._address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._folder = make_scratch("elastrain-agent-")
        self._files = Files(self._folder)
        self._shipper = LogShipper(open_storage(storage_url, storage_options), job, attempt, self._said)
        self._runs: dict[str, Run] = {}
        self._starting_at_once = max(1, len(os.sched_getaffinity(0)) // 2)
        self._stopped: dict[str, bool] = {}  # group -> kill; the order to stop may overtake the one to start
        self._known: set[str] = set()  # groups; Ray repeats a call whose answer was lost
        self._updates: list[Update] = []  # that the launcher has not seen
        self._told = 0
        self._closed = False
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._shipping = threading.Lock()
        threading.Thread(target=self._watch, daemon=True, name="watch").start()
        threading.Thread(target=self._ship, daemon=True, name="ship").start()

    def start(self, group: Mapping[str, Any], resources: Mapping[str, float]) -> None:
        """Begin to start a group; returns at once. resources: of each worker, in Ray's names."""
        with self._changed:
            if group["group"] in self._known:
                return
            self._known.add(group["group"])
        # brings Ray Train, which the driver need not import
        from elastrain.trainers.launching.ray_run import Run
        from elastrain.trainers.launching.ray_server import ServerRun

        workers = tuple(WorkerStart.from_dict(worker) for worker in group["workers"])
        started = GroupStart(group["group"], workers)
        kind = ServerRun if started.server else Run
        run = kind(started, self._files, self._node, resources, self._name, self._tag)
        with self._shipping:
            for worker in run.workers:
                self._shipper.follow(worker, self._files.log(worker))
        with self._changed:
            self._runs[run.group] = run
            stopped = self._stopped.get(run.group)
        if stopped is not None:
            run.stop(kill=stopped)
        self._start_next()

    def stop(self, group: str, kill: bool) -> None:
        """End a group's processes; without `kill` only those that have not begun."""
        with self._changed:
            self._stopped[group] = kill or self._stopped.get(group, False)
            run = self._runs.get(group)
        if run is not None:
            run.stop(kill=kill)

    def updates(self, seen: int, wait_s: float) -> list[Update]:
        """What happened after update `seen`; waits for it for at most `wait_s`. A repeated call is harmless.

        {number, kind: "ended", group, causes}, {number, kind: "log", worker, offset, bytes}, or
        {number, kind: "actor", worker, actor, address, resources}: Ray's actor that holds a worker
        """
        with self._changed:
            self._updates = [update for update in self._updates if update["number"] > seen]
            self._changed.wait_for(lambda: self._updates or self._closed, wait_s)
            return list(self._updates)

    def close(self) -> dict[str, Any]:
        """End every process of the attempt on this node.

        -> {node, pids: what workers had left behind, left: what would not end, seconds,
            updates: all that were not asked for}
        """
        began = time.monotonic()
        self._closing.set()
        runs = list(self._runs.values())
        for run in runs:
            run.stop(kill=True)
        for run in runs:
            run.wait(max(0.0, began + CLOSE_S - time.monotonic()))
        swept = sweep(self._tag, workers_only=True)  # what workers have started and left behind
        with self._shipping:
            self._shipper.ship()
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            updates = list(self._updates)
        seconds = round(time.monotonic() - began, 3)
        return {"node": self._node, **swept.to_dict(), "seconds": seconds, "updates": updates}

    # -- in the background

    def _watch(self) -> None:
        """Notice the end of runs. Their processes are gone before anybody is told."""
        while True:
            time.sleep(LOOK_EVERY_S)
            self._start_next()
            for run in list(self._runs.values()):
                for named in run.new_actors():
                    self._tell({"kind": "actor", "address": self._address, **named})
            for run in [run for run in list(self._runs.values()) if run.over]:
                try:
                    causes = run.end()
                except TimeoutError as error:  # not gone yet: look again
                    log.warning("group %s: %s", run.group, error)
                    continue
                with self._changed:
                    del self._runs[run.group]
                    self._stopped.pop(run.group, None)
                self._tell({"kind": "ended", "group": run.group, "causes": causes})
                threading.Thread(target=self._ship_last, args=(run.workers,), daemon=True).start()

    def _start_next(self) -> None:
        """Start runs in turn: each begins with seconds of imports, and two on two cores are late together."""
        with self._changed:
            runs = list(self._runs.values())
            waiting = [run for run in runs if not run.started]
            starting = [run for run in runs if run.started and not run.begun]
            for run in waiting[: max(0, self._starting_at_once - len(starting))]:
                run.start()

    def _ship(self) -> None:
        while not self._closing.wait(SHIP_EVERY_S):
            with self._shipping:
                self._shipper.ship()

    def _ship_last(self, workers: list[str]) -> None:
        for worker in workers:
            with self._shipping:
                if lost := self._shipper.forget(worker):
                    log.warning("the last %d bytes of the log of %s could not be stored", lost, worker)

    def _said(self, worker: str, offset: int, size: int) -> None:
        self._tell({"kind": "log", "worker": worker, "offset": offset, "bytes": size})

    def _tell(self, update: Update) -> None:
        with self._changed:
            self._told += 1
            self._updates.append({"number": self._told, **update})
            self._changed.notify_all()

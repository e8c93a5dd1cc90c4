"""A parameter server on Ray: an actor of its own, and the server's process that it watches over.

It asks for little CPU, starts in a second where a Ray Train run takes ten, and is not restarted: when it
dies the coordinator starts another one, which gets its state from the buddy. Public API only.
"""

from __future__ import annotations

from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray
from elastrain.trainers.launching.ray_run import Run, headline
from elastrain.trainers.launching.ray_worker import watch_over


class Server:
    """The actor. Its process holds chunks and optimizer state, and dies with it."""

    def run(self, folder: str, group: str, server: str) -> None:
        """Until the server ends. Raises WorkerFailed unless it ends well."""
        watch_over(folder, group, server)


class ServerRun(Run):
    """One server, as `Run` is one group of workers."""

    def _fit(self) -> None:
        if self._files.read(f"{self.group}.stop") is not None:
            return
        (server,) = self.workers
        try:
            actor: Any = (
                ray.remote(Server)
                .options(
                    name=f"{self._name}-{server}",
                    num_cpus=self._resources.get("CPU", 0),
                    max_restarts=0,
                    max_task_retries=0,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(self._node, soft=False),
                )
                .remote()
            )
            try:
                ray.get(actor.run.remote(str(self._files.folder), self.group, server))
            finally:
                ray.kill(actor)
        except Exception as error:  # whatever it is, it is the end of the server, and a fact of it
            self._error = error

    def _cause(self, rank: int, worker: str) -> str:
        if self._files.read(f"{worker}.exit") is None and self._files.read(f"{worker}.pid") is not None:
            said = headline(self._error) if self._error is not None else "its actor ended"
            return f"its process vanished: {said}"
        return super()._cause(rank, worker)

"""When a checkpoint is made beside the fixed steps: by the clock, and again if one failed. No torch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol

from elastrain.trainers.checkpoints.manifests import Checkpoints, Pending
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.messages import Event, Json
from elastrain.trainers.reporting.facts import event, now
from elastrain.trainers.storage import StorageError

log = logging.getLogger(__name__)

RETRY_S = 1.0  # until a checkpoint that failed is asked for again


class Steps(Protocol):
    """What the machine knows of saved steps."""

    saved_step: int | None
    checkpoint_wanted: int | None


class Saving:
    """Takes in what workers say of their uploads; writes the manifest when all have said it."""

    def __init__(
        self, checkpoints: Checkpoints, steps: Steps, feed: Callable[[Event], None], every_s: float | None
    ) -> None:
        self.checkpoints, self.steps, self.feed, self.every_s = checkpoints, steps, feed, every_s
        self.closed = False
        self._asked = 0  # the newest request, by its number
        self._acknowledged = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_s = time.monotonic()

    def tick(self) -> None:
        """Ask for a checkpoint if the last one is `every_s` ago."""
        if self.every_s is not None and time.monotonic() - self._last_s > self.every_s:
            self._last_s = time.monotonic()
            self.feed(m.CheckpointWanted("every_s"))

    def ask(self, number: int) -> None:
        """A request from outside; once what there was to save then is saved, the service hears its number."""
        self._asked = max(self._asked, number)
        self.feed(m.CheckpointWanted(f"request {number}"))

    def part(self, said: Json, workers: tuple[str, ...] | None, gone: set[str]) -> None:
        """A rank is done; workers: of its generation, by rank. gone: who uploads nothing any more."""
        whole = self.checkpoints.arrived(said, workers) if workers is not None else None
        if whole is not None:
            task = asyncio.ensure_future(self._save(whole))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for worker in gone.intersection(workers or ()):  # lost before the first part of it came
            self.lost(worker)

    async def _save(self, pending: Pending) -> None:
        try:
            await asyncio.to_thread(self.checkpoints.save, pending)
        except Exception as error:  # a job must not wait for ever for a checkpoint that nobody makes
            if not isinstance(error, StorageError):
                log.exception("checkpoint %d could not be saved", pending.step)
            text = f"checkpoint {pending.step}: {error}"
            self.checkpoints.emit(event("checkpoint.failed", text, {"step": pending.step}))
            self._want_another(pending.step)
            return
        self._last_s = time.monotonic()
        self.feed(m.CheckpointSaved(pending.step))
        if self._acknowledged < self._asked and self.steps.checkpoint_wanted is None:
            self._acknowledged = self._asked
            said = {"number": self._asked, "step": pending.step}
            self.checkpoints.emit({"kind": "checkpoint_done", "at": now(), **said})

    def lost(self, worker: str) -> None:
        """A worker is gone, and what it had not uploaded with it."""
        for step in self.checkpoints.lost(worker):
            self._want_another(step)

    def failed(self, said: Json, worker: str) -> None:
        """A worker gave up uploading its part."""
        key = (said["step"], said["generation"])
        self.checkpoints.pending.setdefault(key, Pending(key[0], ()))
        self.checkpoints.fail(key, f"{worker}: {said['why']}")
        self._want_another(key[0])

    def _want_another(self, step: int) -> None:
        """Unless a checkpoint of that step or a later one came through by then."""

        def ask() -> None:
            if not self.closed and (self.steps.saved_step or 0) < step:
                self.feed(m.CheckpointWanted(f"checkpoint {step} failed"))

        asyncio.get_running_loop().call_later(RETRY_S, ask)

    async def settled(self) -> None:
        """Returns when manifests that are being written are written, or have failed."""
        for task in list(self._tasks):
            with contextlib.suppress(Exception):
                await task

    async def close(self) -> None:
        self.closed = True
        await self.settled()

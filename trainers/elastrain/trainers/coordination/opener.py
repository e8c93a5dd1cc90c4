"""Sends the members of a new generation what they need to begin. No torch.

Where nobody holds the state, that is a checkpoint, which is looked for beside the event loop: a store that is
slow, or away for a while, must not make the coordinator look dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from elastrain.trainers.checkpoints.fence import Superseded
from elastrain.trainers.checkpoints.manifests import Checkpoints
from elastrain.trainers.coordination.coordinator import Coordinator
from elastrain.trainers.coordination.tally import Tally
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.machine import Machine, Phase
from elastrain.trainers.membership.messages import Event, Json
from elastrain.trainers.membership.opening import thin
from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.reporting.facts import event
from elastrain.trainers.spec.source import MODEL_ONLY, NoSource, model_only
from elastrain.trainers.storage import StorageError

log = logging.getLogger(__name__)

PATIENCE_S = 300.0  # with a store that does not answer, while nothing can begin without it
RETRY_S = 2.0


class Opener:
    """One opening after the other; what is looked up in storage keeps its order."""

    def __init__(
        self,
        machine: Machine,
        coordinator: Coordinator,
        checkpoints: Checkpoints,
        tally: Tally,
        feed: Callable[[Event], None],
        give_up: Callable[[str, m.Blamed], None],
        settled: Callable[[], Awaitable[None]],
    ) -> None:
        """give_up: ends the attempt, since no checkpoint can be had; is told why, and whose fault it is.
        settled: returns when no checkpoint is being written any more."""
        self.settled = settled
        self.machine, self.coordinator, self.checkpoints = machine, coordinator, checkpoints
        self.tally, self.feed, self.give_up = tally, feed, give_up
        self._members: dict[int, list[Json]] = {}  # generation -> {worker, group, node, address} by rank
        self._storage = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, action: m.Open) -> None:
        if action.restore:
            self._later(self._restore(action))
        else:
            self.tell(action, action.step, None)

    def set_aside(self, step: int, why: str) -> None:
        """A member found that a checkpoint is bad: it is not offered again."""
        self._later(self._set_aside(step, why))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # ---- with storage -----------------------------------------------------------------------

    async def _restore(self, action: m.Open) -> None:
        try:
            async with self._storage:
                found = await self._look(action.rewind)
        except StorageError as error:
            why = f"no checkpoint could be looked for, for {PATIENCE_S:.0f} s: {error}"
            self.give_up(why, "infrastructure")
            return
        prefix, manifest = found if found is not None else ("", None)
        cursor = Cursor.from_json(manifest["cursor"]) if manifest is not None else Cursor()
        own = manifest is None or self.checkpoints.own(manifest)
        cursor = replace(cursor, rollbacks=self._rollbacks(cursor, action.rewind, own))
        if self.machine.phase is Phase.FORMING and self.machine.generation.number == action.generation:
            self.tally.restored(cursor)
            self.feed(m.Restored(cursor.step, own))
            if manifest is not None:
                self._say(manifest, own)
        # also if the generation is over by now: who was never told of it could not report that
        restore = {"prefix": prefix, "manifest": manifest, "rollbacks": cursor.rollbacks}
        self.tell(action, cursor.step, restore)

    def _say(self, manifest: Json, own: bool) -> None:
        step, data = manifest["step"], {"step": manifest["step"]} | ({} if own else {"job": manifest["job"]})
        of = f"attempt {manifest['attempt']}" if own else f"job {manifest['job']}"
        name = f"checkpoint {step} of {of}"
        text = f"{name} is loaded"
        if own and (why := self.checkpoints.changed(manifest)) is not None:
            self.tally.warn(f"since {name} {why}: this epoch may read samples twice, or not at all")
        if (why := manifest.get(MODEL_ONLY)) is not None:
            text, data = f"the model of {text}, and nothing else of it", data | {MODEL_ONLY: True}
            self.tally.warn(model_only(self.checkpoints.spec.resume_from or "", why))
        self.checkpoints.emit(event("checkpoint.restored", text, data))

    async def _look(self, rewind: m.Rewind | None) -> tuple[str, Json] | None:
        """The newest good checkpoint; one that was made after training had gone wrong is none. Raises
        NoSource, StorageError."""
        if rewind is not None:
            await self.settled()  # whether it was written in time must not depend on how fast the store is
            why = "training has gone wrong since the step before it, and goes on from an older one"
            await self.patiently(lambda: self.checkpoints.discard_after(rewind.newest, why))
        found: tuple[str, Json] | None = await self.patiently(self.checkpoints.newest)
        step = found[1]["cursor"]["step"] if found is not None else 0
        repetition = self.checkpoints.repetition
        if rewind is not None and repetition is not None and step < repetition.steps:
            repetition.must_not_lower_its_rate(rewind.why)
        return found

    def _rollbacks(self, cursor: Cursor, rewind: m.Rewind | None, own: bool) -> int:
        """How often the rate is lowered from here on: a checkpoint does not know of what came after it. What
        another job did to its rate is not this one's."""
        known = max(self.tally.cursor.rollbacks, cursor.rollbacks if own else 0)
        return rewind.number if rewind is not None else known

    async def _set_aside(self, step: int, why: str) -> None:
        async with self._storage:
            try:
                await self.patiently(lambda: self.checkpoints.set_aside(step, why))
            except StorageError as error:
                log.warning("checkpoint %d is bad and could not be set aside: %s", step, error)

    async def patiently(self, act: Callable[[], Any]) -> Any:
        """Raises StorageError if the store does not answer for long."""
        deadline, said = time.monotonic() + PATIENCE_S, ""
        while True:
            try:
                return await asyncio.to_thread(act)
            except Superseded:
                raise
            except StorageError as error:
                if time.monotonic() > deadline:
                    raise
                if str(error) != said:
                    log.warning("the storage is asked again until it answers: %s", error)
                said = str(error)
                await asyncio.sleep(RETRY_S)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._or_give_up(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _or_give_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Everybody waits for this: an error that nobody thought of must not be kept in a task."""
        try:
            await work
        except NoSource as error:
            self.give_up(str(error), "user")
        except Exception as error:
            log.exception("a checkpoint could not be offered")
            self.give_up(f"elastrain's own code raised {type(error).__name__}: {error}", "service")

    # ---- telling ----------------------------------------------------------------------------

    def tell(self, action: m.Open, step: int, restore: Json | None) -> None:
        workers, served = self.machine.roster.workers, self.machine.policy.servers > 0
        members: list[Json] = [
            {
                "worker": w,
                "group": workers[w].group,
                "node": workers[w].node,
                "address": self.coordinator.addresses[w],
                **({"keeps": False} if served and not workers[w].server else {}),
            }
            for w in action.members
        ]
        self._members[action.generation] = members
        opening = {
            "kind": "open",
            "generation": action.generation,
            **thin(members, action, self._members.get(action.same[0], ())),
            "step": step,
            "cursor": action.cursor,
            "record": action.record,
            "whole": action.whole,
            "done": {w: done for w, done in action.done.items() if done},
            "restore": restore,
            "saved_step": self.machine.progress.saved_step or 0,
            "pace": self.tally.pace.to_json(action.members),
            "hold": action.hold,
        }
        self.coordinator.tell(action.members, opening)

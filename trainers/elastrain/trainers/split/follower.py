"""A shard's session: it has no line to the coordinator, but one to its lead (lockstep.py)."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any, NoReturn

from elastrain.trainers.exchange.collectives import Broken, Halted
from elastrain.trainers.launching.launcher import WorkerStart
from elastrain.trainers.membership.messages import Fault, Report
from elastrain.trainers.split.lockstep import Shards
from elastrain.trainers.split.shards import Alone
from elastrain.trainers.storage import Storage
from elastrain.trainers.training.session import Session

# all else the lead says for all
PASSED_ON = ("part", "part_failed", "bad_checkpoint", "start_failed", "fault")


class Follower(Session):
    """What is agreed comes from the lead; what is said reaches the coordinator through it, or is left out."""

    def __init__(self, start: WorkerStart, shards: Shards, host: str) -> None:
        self.start, self.worker, self.shards = start, start.worker, shards
        self._shards, self._host = shards, host
        self.storage: Storage
        self._log: list[tuple[int, str]] = []

    @property
    def host(self) -> str:
        return self._host

    def send(self, kind: str, **fields: Any) -> None:
        if kind in PASSED_ON:
            self._shards.say(kind, fields)

    def waits(self, generation: int, finished: int) -> None:
        self._shards.waits(finished)

    def works(self, generation: int) -> None:
        self.check(generation)
        self._shards.works()

    def report(self, report: Report) -> None:
        """The lead has said it for all."""

    def check(self, generation: int) -> None:
        if self._shards.halted(generation):
            raise Halted(f"generation {generation} is over")
        if self._shards.left(generation):
            raise Broken("another process of this worker has left the generation")

    def give_up(self, generation: int, fault: Fault) -> NoReturn:
        """The others may be waiting for this process where nothing wakes them: the lead ends all."""
        self.send("fault", generation=generation, fault=asdict(fault))
        threading.Event().wait()
        raise AssertionError

    def wait_dismissed(self) -> None:
        threading.Event().wait()

    def close(self) -> None:
        """It ends with its process."""


def session_of(start: WorkerStart, shards: Alone) -> Session:
    """Of each process of a worker its own."""
    if isinstance(shards, Shards) and not shards.lead:
        return Follower(start, shards, shards.agree(str))
    session = Session(start, shards)
    if isinstance(shards, Shards):
        session.speak_for(shards)
    shards.agree(lambda: session.host)
    return session

"""Asynchronous servers at nasty moments of a generation's beginning."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.serving import ServingTrainer
from elastrain.trainers.strategies.shelf import Shelf
from engine.tasks.toy import Toy

LATE_S = 0.5
_drop_all_but, _stay = Shelf.drop_all_but, Shelf.stay


class Tardy(Toy):
    """Every server but the first one is slow to tidy up its shelf, and lets pushes in meanwhile."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        Shelf.drop_all_but = _late  # type: ignore[method-assign]


def _late(shelf: Shelf[Any], tasks: Sequence[Task]) -> None:
    trainer = _trainer()
    if trainer.group is not None and trainer.group.rank > 0:
        trainer.hub.changed.release()  # whoever calls this holds it
        time.sleep(LATE_S)
        trainer.hub.changed.acquire()
    _drop_all_but(shelf, tasks)


class Martyr(Toy):
    """The first server dies, once, when it has handed everything over to a new one, and says no more."""

    def __init__(self, once: str, **more: Any) -> None:
        super().__init__(**more)
        Shelf.stay = lambda shelf, servers: _die(shelf, servers, Path(once))  # type: ignore[method-assign]


def _die(shelf: Shelf[Any], servers: tuple[str, ...], once: Path) -> None:
    trainer = _trainer()
    new = len(trainer.met) == 2 and "s2" in trainer.met
    if new and trainer.group is not None and trainer.group.rank == 0 and not once.exists():
        once.touch()
        time.sleep(LATE_S)  # what it has sent arrives
        os.kill(os.getpid(), signal.SIGKILL)
    _stay(shelf, servers)


def _trainer() -> ServingTrainer:
    (trainer,) = (o for o in gc.get_objects() if type(o) is ServingTrainer)
    return trainer

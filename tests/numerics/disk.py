"""Checkpoints of workers that are threads: each uploads its part, and the manifest is written, as ever."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastrain.trainers.checkpoints import restore
from elastrain.trainers.checkpoints.manifests import Checkpoints
from elastrain.trainers.checkpoints.snapshots import Snapshots
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.spec import JobSpec
from elastrain.trainers.storage import open_storage
from elastrain.trainers.training.replica import Replica

PATIENCE_S = 30.0


class Disk:
    """It is their session as well: it hears of their parts."""

    def __init__(self, folder: Path, spec: JobSpec) -> None:
        self.storage = open_storage(folder.as_uri())
        self.checkpoints = Checkpoints(self.storage, "job", 1, spec, lambda fact: None)
        self.keepers: tuple[str, ...] = ()
        self._one_by_one = threading.Lock()

    def save(self, replica: Replica, ownership: Ownership, rank: int, workers: Sequence[str]) -> None:
        """Every member calls it. workers: all of them, by rank."""
        self.keepers = tuple(workers[r] for r in ownership.keepers)
        session: Any = self
        snapshots = Snapshots(session, self.storage, "job", 1)
        snapshots.take(replica, ownership, rank, generation=1)
        snapshots.flush(PATIENCE_S)

    def load(self, replica: Replica, ownership: Ownership, rank: int) -> bool:
        """What was saved last, if anything was."""
        found = self.checkpoints.newest()
        if found is not None:
            source = {"prefix": found[0], "manifest": found[1], "rollbacks": 0}
            restore.load(replica, self.storage, source, ownership, rank, lambda: None)
        return found is not None

    # ---- what a worker says -----------------------------------------------------------------

    def send(self, kind: str, **said: Json) -> None:
        with self._one_by_one:
            whole = self.checkpoints.arrived(dict(said), self.keepers) if kind == "part" else None
            if whole is not None:
                self.checkpoints.save(whole)

    def works(self, generation: int) -> None:
        """It may take its time."""

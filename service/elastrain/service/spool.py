"""What a driver could not tell the service before it died: read from object storage, each number once."""

from __future__ import annotations

import json
import logging

from elastrain.service import points, reports
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.meters import Meters
from elastrain.service.store import Store, attempts, jobs
from elastrain.service.store.rows import AttemptRow
from elastrain.trainers.storage import NotFound, Storage

log = logging.getLogger(__name__)


class Spool:
    def __init__(
        self, store: Store, storage: Storage, clock: Clock, changes: Changes, meters: Meters
    ) -> None:
        self._store = store
        self._storage = storage
        self._clock = clock
        self._changes = changes
        self._meters = meters

    def take_in(self, attempt: AttemptRow) -> None:
        """Write what its driver left unacknowledged, a transaction per segment. Raises StorageError.

        Safe to repeat, and to begin again after a kill: what was taken is counted with the attempt.
        """
        for entry in self._storage.list(f"jobs/{attempt.job}/attempts/{attempt.number}/spool"):
            try:
                segment = json.loads(self._storage.get(entry.key))
                first, facts = int(segment["first_seq"]), list(segment["facts"])
            except NotFound:
                continue  # the driver lives, and has told us after all
            except (ValueError, KeyError, TypeError) as error:
                log.warning("%s cannot be read and is left out: %s", entry.key, error)
                continue
            taken = reports.Taken((), 0)
            with self._store.write() as tx:
                row = jobs.lock(tx, attempt.job)
                current = attempts.get(tx, attempt.job, attempt.number)
                if current is not None:
                    taken = reports.take(tx, row, current, first, facts, self._clock.now())
            points.reach("a kept segment is taken in")
            self._meters.took(row, taken)
            self._changes.tell(attempt.job)

"""The service has another address than before: drivers that know the old one find the new one in storage."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain.service import points
from elastrain.service.clock import Clock
from elastrain.service.settings import Settings
from elastrain.service.store import Store, installation
from elastrain.service.store.rows import AttemptRow
from elastrain.trainers.reporting.whereabouts import tell
from elastrain.trainers.storage import Storage

FACT = "driver_url"


class Moves:
    def __init__(self, store: Store, storage: Storage, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._storage = storage
        self._url = settings.driver_url
        self._clock = clock
        self._done = False

    def tell(self, open_attempts: Iterable[AttemptRow]) -> None:
        """Once per process, if the address differs from what was noted last. Raises StorageError."""
        if self._done:
            return
        with self._store.read() as tx:
            noted = installation.read(tx, FACT)
        if noted is None or noted[1] != self._url:
            for attempt in open_attempts if noted is not None else ():
                tell(self._storage, attempt.job, self._url)
                points.reach("a driver is told where we are")
            with self._store.write() as tx:
                installation.write(tx, FACT, self._url, self._clock.now())
            points.reach("the address is noted")
        self._done = True

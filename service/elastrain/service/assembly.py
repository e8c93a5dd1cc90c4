"""The service put together from its parts: store, objects, Ray, the facade, the reconciler's thread."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from elastrain.service.certificates import certificates, for_drivers
from elastrain.service.changes import Changes
from elastrain.service.clock import SystemClock
from elastrain.service.control import Control
from elastrain.service.meters import Meters
from elastrain.service.migrations import migrate
from elastrain.service.pace import Troubles, repeat
from elastrain.service.ray_jobs import RayJobs
from elastrain.service.reconciler import Reconciler
from elastrain.service.removal import Janitor
from elastrain.service.set_clock import Jumps
from elastrain.service.settings import Settings, SettingsError
from elastrain.service.store import Store
from elastrain.service.tracing import open_tracing
from elastrain.service.watch import Watch
from elastrain.trainers.storage import Storage, StorageError, open_storage

log = logging.getLogger(__name__)

TIDY_EVERY_S = 1.0


class Service:
    """Everything of the service but its web server; a context manager.

    Entering migrates the store and starts the reconciler; leaving ends it. `control` is what the API asks.
    """

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for certificates or storage that cannot be used, a bucket that does not exist,
        a database that is none or of a newer version; Unavailable for a database that is away."""
        trusted = certificates(settings.ca_bundle) if settings.ca_bundle else None
        for_drivers(settings.ca_bundle, settings.driver_url)  # said now rather than with the first job
        self._tracing = tracing = open_tracing()
        migrate(settings.database_url)
        self._store = Store(settings.database_url)
        storage = _opened(settings)
        _must_exist(storage)
        clock, changes, meters = SystemClock(), Changes(), Meters()
        self._ray = ray = RayJobs(settings.ray_address, trusted)
        self.control = Control(
            self._store,
            storage,
            settings,
            ping_ray=ray.version,
            clock=clock,
            changes=changes,
            meters=meters,
            tracing=tracing,
        )
        self._changes = changes
        brief = open_storage(settings.storage_url, settings.storage_options, brief=True)
        parts = (self._store, brief, ray, settings, clock, changes, meters, tracing)
        self.reconciler = Reconciler(*parts, Jumps())
        self._stop = threading.Event()
        janitor = Janitor(self._store, storage, settings, clock)
        watch = Watch(self._store, changes)
        loops = {"reconciler": self.reconciler.run, "janitor": janitor.run, "watch": watch.run}
        loops |= {
            "keeper": lambda stop: repeat(self._store.tidy, TIDY_EVERY_S, stop, "the store", Troubles())
        }
        self._threads = [
            threading.Thread(target=run, args=(self._stop,), name=name, daemon=True)
            for name, run in loops.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def hold(self) -> None:
        """From here on no waiting job starts; those that run go on being looked after."""
        self.reconciler.admitting = False

    def stop(self) -> None:
        """End the reconciler, also in the middle of a round. Safe to call twice."""
        self._stop.set()
        self._changes.tell("", decide=True)
        for thread in self._threads:
            thread.join(timeout=10)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.close()

    def close(self) -> None:
        """Let go of what the parts hold. For one that was never entered."""
        self._ray.close()
        self._store.close()
        self._tracing.close()


def _opened(settings: Settings) -> Storage:
    try:
        return open_storage(settings.storage_url, settings.storage_options)
    except StorageError as error:
        # nothing was asked of it yet: the URL is wrong, or its folder cannot be made
        raise SettingsError(f"ELASTRAIN_STORAGE_URL: {error}") from error


def _must_exist(storage: Storage) -> None:
    """A bucket that nobody made is the operator's to make; one that is away, or refuses us, may come back."""
    try:
        storage.check()
    except StorageError as error:
        if error.kind == "missing_bucket":
            raise SettingsError(f"ELASTRAIN_STORAGE_URL: {error}") from None
        log.warning("the object storage: %s", error)

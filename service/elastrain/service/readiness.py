"""Whether this service can do its work: four checks that say what is wrong, at most every ten seconds."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from elastrain.service.clock import Clock
from elastrain.service.cluster_check import FACT
from elastrain.service.errors import ServiceError, Unavailable
from elastrain.service.pace import Troubles
from elastrain.service.store import Store, installation
from elastrain.trainers.storage import Storage

Json = dict[str, Any]
CACHED_S = 10.0
# the reconciler moves every second or two; silent for this long, it hangs or died
HEARTBEAT_LIMIT_S = 30.0


class Readiness:
    def __init__(
        self,
        store: Store,
        storage: Storage,
        ping_ray: Callable[[], str],
        clock: Clock,
        max_age_s: float = CACHED_S,
    ) -> None:
        self._store = store
        self._storage = storage
        self._ping_ray = ping_ray
        self._clock = clock
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._troubles = Troubles()
        self._cached: tuple[float, Json] | None = None

    def check(self) -> Json:
        """{ready, checks: {name: {ok, detail, age_s}}}; details name no addresses."""
        with self._lock:  # of many callers at once one does the work
            now = time.monotonic()
            if self._cached is None or now - self._cached[0] > self._max_age_s:
                parts = {
                    "database": self._write_database,
                    "objects": self._write_object,
                    "ray": self._reach_ray,
                    "reconciler": self._heartbeat,
                }
                checks = {name: _outcome(check, self._troubles, name) for name, check in parts.items()}
                self._cached = (time.monotonic(), checks)
            taken, checks = self._cached
        age_s = round(time.monotonic() - taken, 1)
        shown = {name: {**found, "age_s": age_s} for name, found in checks.items()}
        return {"ready": all(found["ok"] for found in shown.values()), "checks": shown}

    def database_ok(self) -> bool:
        return bool(_outcome(self._write_database, self._troubles, "database")["ok"])

    def _write_database(self) -> str:
        with self._store.write() as tx:
            installation.write(tx, "readyz", True, self._clock.now())
        return "takes writes"

    def _write_object(self) -> str:
        self._storage.put(f"readyz/{os.getpid()}", b"ok", create_only=False)
        return "takes writes"

    def _reach_ray(self) -> str:
        """It is there, and nothing was found on it that is not as it should be."""
        found, checked = f"Ray {self._ping_ray()}", None
        with contextlib.suppress(Unavailable), self._store.read() as tx:  # which has a check of its own
            checked = installation.read(tx, FACT)
        if checked is not None and (differ := checked[1]["differences"]):
            raise RuntimeError(f"{found}; {'; '.join(differ)}")
        return found

    def _heartbeat(self) -> str:
        with self._store.read() as tx:
            beat = installation.read(tx, "reconciler")
        if beat is None:
            raise RuntimeError("it has not completed a round yet")
        age_s = self._clock.now() - beat[0]
        if age_s > HEARTBEAT_LIMIT_S:
            raise RuntimeError(f"its last round was {age_s:.0f} s ago")
        return f"its last round was {age_s:.1f} s ago"


def _outcome(check: Callable[[], str], troubles: Troubles, name: str) -> Json:
    """The full error goes to the log, once; the answer, open to anybody, gets only its kind."""
    try:
        detail = check()
        troubles.over(name)
        return {"ok": True, "detail": detail}
    except Exception as error:  # whatever is wrong with a part, the answer says so
        told = (
            str(error)
            if isinstance(error, RuntimeError | ServiceError)
            else getattr(error, "kind", type(error).__name__)
        )
        troubles.begin(name, f"not ready: {error}", sort=told)
        return {"ok": False, "detail": told}

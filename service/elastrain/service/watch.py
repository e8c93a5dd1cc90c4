"""One look into the store for all drivers that wait: another process may have changed what they wait for.

Within one process whoever brings news wakes them (changes.py). Hundreds of drivers that each asked the store
once a second would keep it from the users.
"""

from __future__ import annotations

import threading

from elastrain.service.changes import Changes
from elastrain.service.pace import Troubles, repeat
from elastrain.service.store import Store, attempts

LOOK_EVERY_S = 1.0


class Watch:
    """What is desired of each open attempt, as it was seen last. One thread calls `look` or `run`."""

    def __init__(self, store: Store, changes: Changes) -> None:
        self._store, self._changes = store, changes
        self._seen: dict[tuple[str, int], attempts.Line] = {}

    def run(self, stop: threading.Event) -> None:
        repeat(self.look, LOOK_EVERY_S, stop, "the watch over orders", Troubles())

    def look(self) -> None:
        """Wake whoever waits for orders that changed since the last look. Raises what the store raises."""
        with self._store.read() as tx:
            now = {(line.job, line.number): line for line in attempts.lines(tx)}
        before, self._seen = self._seen, now
        for job in {job for (job, _), _ in now.items() ^ before.items()}:
            self._changes.tell(job)

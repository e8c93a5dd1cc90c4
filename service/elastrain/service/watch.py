"""One look into the store for all drivers that wait: another process may have changed what they wait for.

Within one process whoever brings news wakes them (changes.py). Hundreds of drivers that each asked the store
once a second would keep it from the users.
"""

from __future__ import annotations

import logging
import threading

from elastrain.service.changes import Changes
from elastrain.service.pace import Troubles
from elastrain.service.store import Store, attempts

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class Watch:
    """What is desired of each open attempt, as it was seen last. One thread calls `look` or `run`."""

    def __init__(self, store: Store, changes: Changes) -> None:
        self._store, self._changes = store, changes
        self._seen: dict[tuple[str, int], attempts.Line] = {}
        self._troubles = Troubles()

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(LOOK_EVERY_S):
            try:
                self.look()
                self._troubles.over("the watch over orders")
            except Exception as error:  # a database that is away for a minute must not end the loop
                self._troubles.begin("the watch over orders", str(error))

    def look(self) -> None:
        """Wake whoever waits for orders that changed since the last look. Raises what the store raises."""
        with self._store.read() as tx:
            now = {(line.job, line.number): line for line in attempts.lines(tx)}
        before, self._seen = self._seen, now
        for job in {job for (job, _), _ in now.items() ^ before.items()}:
            self._changes.tell(job)

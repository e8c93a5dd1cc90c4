"""Deleting ended jobs: marked first, so that nobody sees them any more; the janitor removes what they left.

A kill at any line, or an object store that is away, only means that the janitor comes again: a job's row goes
last, after its objects.
"""

from __future__ import annotations

import logging
import threading

from elastrain.service.auth import Actor
from elastrain.service.clock import Clock
from elastrain.service.commands import not_now
from elastrain.service.finding import lock
from elastrain.service.jobs import ENDED
from elastrain.service.pace import Pace, Troubles, repeat
from elastrain.service.retention import DAY_S, Retention
from elastrain.service.settings import Settings
from elastrain.service.store import Store, attempts, jobs, keys, leftovers
from elastrain.service.views import JobViews, Json
from elastrain.trainers.storage import Storage, StorageError

log = logging.getLogger(__name__)

ROUND_S = 5.0
# what grows old does so slowly, and looking for it reads much
OLD_EVERY_S = 600.0
# how long the answer to a request is kept for its repetition
KEYS_S = 2 * DAY_S
# a transaction deletes so many rows of a table: others want to write too
ROWS = 2_000


class Removal:
    def __init__(self, store: Store, job_views: JobViews, clock: Clock) -> None:
        self._store = store
        self._views = job_views
        self._clock = clock

    def delete(self, job_id: str, actor: Actor) -> Json:
        """The job as it was; from now on it is not found. Raises Conflict unless it has ended."""
        with self._store.write() as tx:
            row = lock(tx, job_id, actor, "delete jobs")
            if row.status not in ENDED:
                raise not_now(row, "deleted")
            job = self._views.one(tx, row)
            jobs.change(tx, row.id, deleted_at=self._clock.now())
        log.info("job %s (%s) was deleted by %s", row.id, row.name, actor.name)
        return job


class Janitor:
    """One thread calls `round` or `run`; several service processes may have one each."""

    def __init__(self, store: Store, storage: Storage, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._storage = storage
        self._retention = Retention(settings.keep_ended_days * DAY_S)
        self._clock = clock
        self._old = Pace(clock, OLD_EVERY_S)
        self._notices = Pace(clock, DAY_S)
        self._troubles = Troubles()

    def run(self, stop: threading.Event) -> None:
        repeat(self.round, ROUND_S, stop, "the janitor", self._troubles)

    def round(self) -> None:
        """Everything once. Raises what the store raises."""
        if self._old.due("what is old"):
            self._mark_old()
        with self._store.read() as tx:
            leaving = {attempt.job for attempt in attempts.not_ended(tx)}
            deleted = leftovers.marked(tx)
        for id in deleted:
            if id not in leaving:  # its driver may still write
                self._remove(id)

    def _mark_old(self) -> None:
        now, keep_s = self._clock.now(), self._retention.keep_s
        with self._store.write() as tx:
            keys.forget_before(tx, now - KEYS_S)
            old = leftovers.mark_older(tx, now - keep_s, now) if keep_s else []
        for id in old:
            log.info("job %s ended more than %g days ago, and is removed", id, keep_s / DAY_S)
        if keep_s and self._notices.due("what is removed next"):
            self._give_notice(now - keep_s + self._retention.notice_s)

    def _give_notice(self, ended_before: float) -> None:
        with self._store.read() as tx:
            going = leftovers.older(tx, ended_before)
        if going:
            log.warning("%s", self._retention.notice(going))

    def _remove(self, id: str) -> None:
        try:
            for entry in self._storage.list(f"jobs/{id}"):
                self._storage.delete(entry.key)
        except StorageError as error:
            self._troubles.begin(f"job {id}", f"what it left cannot be removed yet: {error}")
            return
        self._troubles.over(f"job {id}")
        gone = False
        while not gone:
            with self._store.write() as tx:
                gone = leftovers.remove_some(tx, id, ROWS)

"""The end of an attempt whose driver is gone and did not vouch for its processes: they are searched for.

    sweeping: SWEEP (a Ray Job searches every node) -> COLLECT its receipt -> ended
                 ^------- not everything is gone: wait, the next number --+

Written down before Ray is asked, so a service that is killed anywhere goes on with the same search.
"""

from __future__ import annotations

import logging
import shlex

from elastrain.service import ids, points, receipts
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.jobs import Status
from elastrain.service.look import Looker
from elastrain.service.ray_jobs import ENDED, AlreadySubmitted, Launch, Ray, RayRefused
from elastrain.service.settings import Settings
from elastrain.service.store import Store, Tx, attempts, feed, jobs, training
from elastrain.service.store.rows import AttemptRow, JobRow
from elastrain.trainers.launching import receipt_line

log = logging.getLogger(__name__)

AGAIN_S = (2.0, 5.0, 15.0, 30.0)  # before the 2nd, 3rd ... search
# a job that goes on does not depend on it; one that is to be cancelled waits for as long as it takes
AT_MOST = 5


class Sweeps:
    """Asks Ray to search, and reads what was found. Raises RayUnreachable, RayRefused, LookupError."""

    def __init__(
        self, store: Store, ray: Ray, looker: Looker, settings: Settings, clock: Clock, changes: Changes
    ) -> None:
        self._store = store
        self._ray = ray
        self._looker = looker
        self._settings = settings
        self._clock = clock
        self._changes = changes

    def sweep(self, attempt: AttemptRow) -> bool:
        """Have Ray begin the search."""
        number = max(1, attempt.sweep_no)
        tag = ids.tag(self._looker.installation, attempt.job, attempt.number)
        with self._store.write() as tx:
            values = {"sweep_no": number, "sweep_at": self._clock.now()}
            attempts.change(tx, attempt.job, attempt.number, **values)
        points.reach("the search is noted")
        id = ids.sweep_id(attempt.submission_id, number)
        entrypoint = (
            f"{self._settings.driver_python} -m elastrain.trainers.launching.ray_sweep {shlex.quote(tag)}"
        )
        try:
            self._ray.submit(Launch(id, entrypoint))
        except AlreadySubmitted:
            if self._ray.job(id) is None:
                raise RayRefused("Ray says that it has the search, and does not show it") from None
        return False

    def collect(self, attempt: AttemptRow) -> bool:
        """Take the receipt; without one, or if something is left, search again after a while."""
        id = ids.sweep_id(attempt.submission_id, attempt.sweep_no)
        job = self._ray.job(id)
        if job is not None and job.status not in ENDED:
            self._ray.stop(id)
            points.reach("the overdue search is stopped")
        found = receipts.read(receipt_line.find(self._ray.logs(id)))
        left = "the search itself failed" if found is None else receipts.open_points(found)
        now = self._clock.now()
        with self._store.write() as tx:
            row = jobs.lock(tx, attempt.job)
            current = attempts.get(tx, attempt.job, attempt.number)
            if current is None or current.state != "sweeping" or current.sweep_no != attempt.sweep_no:
                return False
            used = training.nodes_of(tx, attempt.job, attempt.number)
            if found is not None and not left:
                end(tx, current, receipts.searched(found, used), now)
            elif row.status is not Status.CANCELLING and current.sweep_no >= AT_MOST:
                end(tx, current, receipts.given_up(found, left, used), now)
            else:
                _again(tx, row, current, left, now)
        self._changes.tell(attempt.job)
        return True


def end(tx: Tx, attempt: AttemptRow, receipt: receipts.Json, at: float) -> None:
    """The attempt is over and out. `tx` holds the job's lock."""
    values = {"state": "ended", "receipt": receipt, "ended_at": attempt.ended_at or at, "code": None}
    attempts.change(tx, attempt.job, attempt.number, **values)
    if receipt["nodes"] or not receipt["proven"]:
        data = {"attempt": attempt.number, **receipt}
        feed.add_event(
            tx, attempt.job, "attempt.receipt", receipts.sentence(attempt.number, receipt), data, at
        )


def _again(tx: Tx, row: JobRow, attempt: AttemptRow, left: str, at: float) -> None:
    wait_s = AGAIN_S[min(attempt.sweep_no, len(AGAIN_S)) - 1]
    values = {"sweep_no": attempt.sweep_no + 1, "sweep_at": at + wait_s}
    attempts.change(tx, attempt.job, attempt.number, **values)
    log.warning(
        "job %s: search %d for processes of attempt %d: %s", row.id, attempt.sweep_no, attempt.number, left
    )
    if row.status is Status.CANCELLING:
        message = f"Not everything of attempt {attempt.number} is gone yet: {left}; searching again"
        jobs.change(tx, row.id, message=message)

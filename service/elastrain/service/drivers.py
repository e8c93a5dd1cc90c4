"""What the reconciler does about a driver: each act is safe to repeat, and guarded by what is written down.

Whoever acts looks again under the job's lock: another process, or the driver itself, may have been faster.
Every method returns True if the job should be looked at once more in the same round.
"""

from __future__ import annotations

import logging
import secrets

from elastrain.service import ids, outcomes, points, receipts, settle, sweeps
from elastrain.service.auth import digest
from elastrain.service.certificates import for_drivers
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.jobs import Status
from elastrain.service.look import Looker
from elastrain.service.meters import Meters
from elastrain.service.pace import Pace
from elastrain.service.ray_jobs import ENDED, AlreadySubmitted, Launch, Ray, RayRefused
from elastrain.service.settings import Settings
from elastrain.service.spool import Spool
from elastrain.service.store import Store, Tx, attempts, feed, jobs, training
from elastrain.service.store.rows import AttemptRow, JobRow
from elastrain.trainers.storage import Storage, StorageError

log = logging.getLogger(__name__)

# how often object storage is asked for outcomes while Ray cannot be
OUTCOME_EVERY_S = 10.0


class Drivers:
    """Opens, submits, stops and closes attempts.

    Every method may raise RayUnreachable, RayRefused, StorageError, LookupError.
    """

    def __init__(
        self,
        store: Store,
        storage: Storage,
        ray: Ray,
        looker: Looker,
        settings: Settings,
        clock: Clock,
        changes: Changes,
        meters: Meters,
    ) -> None:
        self._store = store
        self._storage = storage
        self._ray = ray
        self._looker = looker
        self._settings = settings
        self._clock = clock
        self._changes = changes
        self._outcomes = Pace(clock, OUTCOME_EVERY_S)
        self._spool = Spool(store, storage, clock, changes, meters)

    def open(self, row: JobRow) -> bool:
        """Write the attempt down before Ray hears of it."""
        now, code, installation = self._clock.now(), secrets.token_urlsafe(32), self._looker.installation
        with self._store.write() as tx:
            row = jobs.lock(tx, row.id)
            known = attempts.of_job(tx, row.id)
            if row.status is not Status.STARTING or any(attempt.has_driver for attempt in known):
                return False
            number = row.attempt + 1
            attempts.open_new(
                tx,
                row.id,
                number,
                submission_id=ids.submission_id(installation, row.id, number),
                code=code,
                code_digest=digest(code),
                token_secret=secrets.token_urlsafe(32),
                cluster=self._looker.cluster,
                at=now,
            )
            jobs.change(tx, row.id, attempt=number, attempts_made=row.attempts_made + 1)
        return True

    def submit(self, row: JobRow, attempt: AttemptRow) -> bool:
        """If this process dies behind the call, the next round finds the driver in Ray, or calls again."""
        assert attempt.code is not None
        env = {
            "ELASTRAIN_DRIVER_URL": self._settings.driver_url,
            "ELASTRAIN_JOB": attempt.job,
            "ELASTRAIN_ATTEMPT_NUMBER": str(attempt.number),
            "ELASTRAIN_CLAIM": attempt.code,
            "ELASTRAIN_ATTEMPT": ids.tag(self._looker.installation, attempt.job, attempt.number),
        }
        if known_by := for_drivers(self._settings.ca_bundle, self._settings.driver_url):
            env["ELASTRAIN_CERTIFICATES"] = known_by
        # the name is for people: Ray's list of jobs shows the entrypoint, a job's page its metadata
        entrypoint = f"{self._settings.driver_python} -m elastrain.trainers.driver {row.name}"
        about = {"name": row.name, "project": row.project, "job": row.id, "attempt": str(attempt.number)}
        try:
            self._ray.submit(Launch(attempt.submission_id, entrypoint, env, self._settings.driver, about))
        except AlreadySubmitted:
            if self._ray.job(attempt.submission_id) is None:
                raise RayRefused("Ray says that it has the driver, and does not show it") from None
        points.reach("ray has the driver")
        return self.mark_submitted(attempt)

    def mark_submitted(self, attempt: AttemptRow) -> bool:
        now = self._clock.now()
        with self._store.write() as tx:
            jobs.lock(tx, attempt.job)
            current = attempts.get(tx, attempt.job, attempt.number)
            if current is not None and current.state == "submitting":
                values = {"state": "submitted", "submitted_at": now, "cluster": self._looker.cluster}
                attempts.change(tx, attempt.job, attempt.number, **values)
                if attempt.number == 1:
                    jobs.change(tx, attempt.job, message=None)  # why it took so long, if it did
        return True

    def stop(self, attempt: AttemptRow, why: str) -> bool:
        log.info("job %s: asking Ray to stop attempt %d: %s", attempt.job, attempt.number, why)
        now, data = self._clock.now(), {"attempt": attempt.number}
        with self._store.write() as tx:
            jobs.lock(tx, attempt.job)
            if attempt.stop_asked_at is None:
                said = f"Ray is asked to end the driver of attempt {attempt.number}: {why}"
                feed.add_event(tx, attempt.job, "attempt.stopping", said, data, now)
            attempts.change(tx, attempt.job, attempt.number, stop_asked_at=now)
        self._changes.tell(attempt.job)
        points.reach("the stop is noted")
        self._ray.stop(attempt.submission_id)
        return False

    def read_outcome(self, attempt: AttemptRow) -> bool:
        """While Ray is away: a driver that finished has left its outcome, which needs no Ray to be true."""
        if not self._outcomes.due(attempt.submission_id):
            return False
        end = outcomes.read(self._storage, attempt.job, attempt.number)
        points.reach("the outcome is read")
        if end is not None:
            self._spool.take_in(attempt)
            with self._store.write() as tx:
                row = jobs.lock(tx, attempt.job)
                current = attempts.get(tx, attempt.job, attempt.number)
                if current is not None and row.attempt == attempt.number:
                    settle.settle(tx, row, current, end, self._clock.now())
            self._changes.tell(attempt.job)
        return False

    def close(self, attempt: AttemptRow, why: str) -> bool:
        """The driver is gone, whatever it was: its outcome counts, or it is lost. One transaction."""
        shown = self._ray.job(attempt.submission_id)
        if shown is not None and shown.status not in ENDED:
            return False  # the list left it out
        return self._end(attempt, self._outcome_of(attempt) or _lost(attempt, why))

    def cluster_lost(self, attempt: AttemptRow, why: str) -> bool:
        """As `close`; nothing of it can be searched any more. That is no fault of the job."""
        lost = settle.End(None, None, "infrastructure", why, blameless=True)
        return self._end(attempt, self._outcome_of(attempt) or lost, unproven=why)

    def abandon(self, attempt: AttemptRow) -> bool:
        """An admin takes it as gone. If its driver did record an outcome, that still counts."""
        end, why = None, f"{attempt.forced_by} took it as gone: nothing was searched"
        try:
            end = self._outcome_of(attempt)
        except StorageError as error:
            log.warning("job %s: forced to end, and its outcome cannot be read: %s", attempt.job, error)
        return self._end(attempt, end or settle.End(None, None, "infrastructure", why), unproven=why)

    def finish(self, row: JobRow) -> bool:
        with self._store.write() as tx:
            row = jobs.lock(tx, row.id)
            known = attempts.of_job(tx, row.id)
            proven = row.status is Status.CANCELLING  # a paused job need not wait for that
            still = any(attempt.has_driver or (proven and attempt.state != "ended") for attempt in known)
            if not still and row.status in (Status.CANCELLING, Status.PAUSING):
                lost = any(a.receipt and a.receipt["reason"] == receipts.CLUSTER_LOST for a in known[-1:])
                settle.without_attempt(tx, row, self._clock.now(), lost)
        self._changes.tell(row.id)
        return False

    def _outcome_of(self, attempt: AttemptRow) -> settle.End | None:
        """What the driver left in object storage, where nobody knows its outcome yet. Raises StorageError."""
        if attempt.claimed_at is None or attempt.outcome is not None:
            return None
        self._spool.take_in(attempt)
        end = outcomes.read(self._storage, attempt.job, attempt.number)
        points.reach("the outcome is read")
        return end

    def _end(self, attempt: AttemptRow, end: settle.End, unproven: str | None = None) -> bool:
        """unproven: why its processes cannot be searched for."""
        now = self._clock.now()
        with self._store.write() as tx:
            row = jobs.lock(tx, attempt.job)
            current = attempts.get(tx, attempt.job, attempt.number)
            if current is None or current.state == "ended" or current.claimed_at != attempt.claimed_at:
                return False
            if row.attempt == attempt.number:
                settle.settle(tx, row, current, end, now)
                current = attempts.get(tx, attempt.job, attempt.number) or current
            receipt = _receipt(tx, current, unproven)
            if receipt is not None:
                sweeps.end(tx, current, receipt, now)
            elif current.state != "sweeping":
                values = {"state": "sweeping", "ended_at": now, "code": None}
                attempts.change(tx, attempt.job, attempt.number, **values)
        self._changes.tell(attempt.job)
        return True


def _receipt(tx: Tx, attempt: AttemptRow, unproven: str | None) -> receipts.Json | None:
    """What is known already of the end of its processes; None if they have to be searched for."""
    if attempt.claimed_at is None:
        return receipts.nothing_started()
    if attempt.receipt is not None and attempt.forced_by is None:
        return attempt.receipt
    if unproven is not None:
        return receipts.cluster_lost(unproven, training.nodes_of(tx, attempt.job, attempt.number))
    return None


def _lost(attempt: AttemptRow, why: str) -> settle.End:
    said = "ended without an outcome" if attempt.claimed_at is not None else "never called the service"
    message = f"The driver of attempt {attempt.number} {said}. {why}"
    return settle.End(None, None, "infrastructure", message)

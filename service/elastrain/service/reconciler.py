"""The loop that moves what is to what is wanted. It may be killed between any two lines.

Each round looks at Ray, asks `decide` about every job that has a driver or needs one, asks `plan` who gets
workers, and stops what no open attempt accounts for. What it will do is written down before Ray is asked to
do it, so the next round, of this process or another, finds out how far it came.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from elastrain.service import points
from elastrain.service.changes import RECONCILER, Changes
from elastrain.service.clock import Clock
from elastrain.service.cluster_check import ClusterCheck
from elastrain.service.decide import STOP_AGAIN_S, Action, Decision, Limits, decide, open_attempt
from elastrain.service.drivers import Drivers
from elastrain.service.errors import Unavailable
from elastrain.service.jobs import ACTIVE, Status
from elastrain.service.look import Look, Looker
from elastrain.service.meters import Meters
from elastrain.service.moves import Moves
from elastrain.service.outage import Outage
from elastrain.service.pace import Breath, Pace, Troubles, cause
from elastrain.service.placement import Placement
from elastrain.service.ray_jobs import ENDED, Ray, RayRefused, RayUnreachable
from elastrain.service.scheduling.order import BREATH
from elastrain.service.set_clock import SetClock
from elastrain.service.settings import Settings
from elastrain.service.store import Store, attempts, installation, jobs
from elastrain.service.store.rows import AttemptRow, JobRow
from elastrain.service.sweeps import Sweeps
from elastrain.service.timeouts import Timeouts
from elastrain.service.tracing import NO_TRACING, Tracing
from elastrain.trainers.storage import Storage, StorageError

log = logging.getLogger(__name__)

ROUND_S = 1.0
# so many times as long as a round computed it rests, up to REST_MAX_S: the API shares its interpreter
REST, REST_MAX_S = 19.0, 3.0
# how often what was seen is written down although nothing changed
BEAT_EVERY_S = 5.0
NEED_STORAGE = (Action.CLOSE, Action.CLUSTER_LOST, Action.READ_OUTCOME)
# one round takes a job this many steps at most: closed, opened, submitted
STEPS = 4


class Reconciler:
    """Only caches live in memory. One thread calls `round` or `run`."""

    def __init__(
        self,
        store: Store,
        storage: Storage,
        ray: Ray,
        settings: Settings,
        clock: Clock,
        changes: Changes,
        meters: Meters | None = None,
        tracing: Tracing = NO_TRACING,
        jumps: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """jumps: by how many seconds the clock was set since it was asked last."""
        self._store = store
        self._ray = ray
        self._clock, self._capacity_max = clock, settings.capacity_max
        self._changes = changes
        self._meters = meters = meters or Meters()
        self._tracing = tracing
        self._limits = Limits(
            settings.cancel_grace_s, settings.pause_grace_s, settings.claim_timeout_s, clock.now()
        )
        self._looker = Looker(store, ray, clock)
        self._drivers = Drivers(store, storage, ray, self._looker, settings, clock, changes, meters)
        self._sweeps = Sweeps(store, ray, self._looker, settings, clock, changes)
        self._moves = Moves(store, storage, settings, clock)
        self._placement = Placement(store, settings.driver, settings.capacity_max, changes, meters)
        self._outage = Outage(store, clock, changes)
        self._timeouts = Timeouts(store, clock, changes)
        self._set_clock = SetClock(store, clock, jumps)
        self._troubles = Troubles()
        self._check = ClusterCheck(store, ray, self._looker, settings, clock, self._troubles)
        self._strays = Pace(clock, STOP_AGAIN_S)
        self._beat_at, self._beat_error, self._whole = float("-inf"), "", True
        self.admitting = True
        """Whether waiting jobs may start; off while the service drains."""

    def run(self, stop: threading.Event) -> None:
        """Rounds until told to stop, each as soon as something changed, at the latest after ROUND_S."""
        while not stop.is_set():
            seen, used = self._changes.count(RECONCILER), time.thread_time()
            try:
                self.round()
                self._troubles.over("the reconciler")
                self._troubles.over("the database")
            except Unavailable as error:
                self._meters.troubles.labels("database").inc()
                told = f"{error}: jobs stay as they are until it does. {cause(error)}"
                self._troubles.begin("the database", told, sort="away")
                stop.wait(ROUND_S)
            except Exception as error:  # a database that is away for a minute must not end the loop
                self._meters.troubles.labels("round").inc()
                if self._troubles.begin("the reconciler", f"a round failed: {error}"):
                    log.exception("this is how it failed")
                stop.wait(ROUND_S)
            stop.wait(min(REST_MAX_S, REST * (time.thread_time() - used)))
            self._changes.wait(RECONCILER, seen, ROUND_S)

    def round(self) -> None:
        """Everything once, unless another process leads. Raises what the store raises; Ray may be away."""
        whole, self._whole = self._whole, False  # whether the round before was made to its end
        leads = self._store.leads()
        self._meters.leads.set(leads)
        if not leads:
            return
        with self._meters.round_s.time(), self._tracing.span("reconciler round"):
            self._lead(whole)
        self._whole = True

    def _lead(self, whole: bool) -> None:
        if self._set_clock.noticed() or not whole:  # nobody is blamed for what could not be heard meanwhile
            self._limits = replace(self._limits, began=self._clock.now())
            self._looker.forget()
            self._beat_at = float("-inf")
        with self._tracing.span("look at Ray"):
            look = self._looker.look()
        points.reach("looked")
        if look.error is None:
            self._troubles.over("Ray")
        else:
            self._meters.troubles.labels("ray").inc()
            self._troubles.begin("Ray", look.error)
        breathe = Breath()
        with self._store.read() as tx:  # after the look: what Ray shows was written down before
            active, open_attempts = jobs.in_status(tx, ACTIVE, breathe), attempts.not_ended(tx)
        self._meters.passes(active, self._clock.now())
        self._tell_moves(open_attempts, look)
        self._outage.round(look.error, active)
        self._timeouts.enforce(active)
        # a job that is to be cancelled waits for the search for its processes, another one goes on
        waits = {a.job for a in open_attempts if a.has_driver}
        waits |= {row.id for row in active if row.status is Status.CANCELLING}.intersection(
            a.job for a in open_attempts
        )
        for row in active:
            if row.id not in waits:
                self._advance(row.id, None, look)
        rows = {row.id: row for row in active}
        for number, attempt in enumerate(open_attempts, start=1):
            if not number % BREATH:
                breathe()
            if not self._rests(rows.get(attempt.job), attempt, look):
                self._advance(attempt.job, attempt.number, look)
        with self._tracing.span("place jobs"):
            granted = self._placement.place(look.steady, look.error, self._clock.now(), self.admitting)
        points.reach("placed")
        for job in granted:
            self._advance(job, None, look)
        self._stop_strays(look, {(a.job, a.number) for a in open_attempts if a.has_driver})
        if look.storage_error is None:
            self._troubles.over("the object storage")
        self._check.round(look)
        self._beat(look)

    # -- one job

    def _rests(self, row: JobRow | None, attempt: AttemptRow, look: Look) -> bool:
        """Whether nothing is to be done, by what the round has read: so it is of nearly all jobs."""
        if row is None:
            return False
        now = self._clock.now()
        if decide(row, attempt, look.of(attempt), now, self._limits).action is not Action.NOTHING:
            return False
        self._troubles.over(f"job {row.id}")
        return True

    def _advance(self, job: str, number: int | None, look: Look) -> None:
        """As many steps as can be taken now. Trouble with one job leaves the others alone."""
        try:
            for _ in range(STEPS):
                with self._store.read() as tx:
                    row = jobs.get(tx, job)
                    attempt = open_attempt(row, attempts.of_job(tx, job), number)
                decision = decide(row, attempt, look.of(attempt), self._clock.now(), self._limits)
                if look.storage_error is not None and decision.action in NEED_STORAGE:
                    break  # asking for every job would take as long as all the store's timeouts together
                if decision.action is Action.NOTHING or not self._act(row, attempt, decision):
                    break
                number = None
            self._troubles.over(f"job {job}")
        except RayUnreachable as error:
            look.error = look.error or str(error)
        except RayRefused as error:
            self._meters.troubles.labels("ray_refused").inc()
            self._refused(job, str(error))
        except StorageError as error:
            self._no_storage(error, look)
        except Unavailable:
            raise
        except Exception as error:
            self._left_alone(job, error)

    def _left_alone(self, job: str, error: Exception) -> None:
        """It has been removed, or there is a fault of ours with it: the others go on."""
        if type(error) is LookupError:
            log.info("job %s is no longer there", job)
            return
        self._meters.troubles.labels("round").inc()
        if self._troubles.begin(f"job {job}", f"it cannot be moved on: {error!r}"):
            log.exception("this is how it failed")

    def _no_storage(self, error: StorageError, look: Look) -> None:
        look.storage_error = str(error)
        self._meters.troubles.labels("object_storage").inc()
        told = f"{error}. Jobs whose drivers ended stay as they are until their outcomes can be read"
        self._troubles.begin("the object storage", told, sort=error.kind)

    def _refused(self, job: str, text: str) -> None:
        """Ray did not do it; the next round asks again, and the job says what is the matter meanwhile."""
        if self._troubles.begin(f"job {job}", text):
            with self._store.write() as tx:
                if jobs.lock(tx, job).status is Status.STARTING:
                    jobs.change(tx, job, message=f"{text}; trying again")
            points.reach("the refusal is noted")
            self._changes.tell(job)

    def _act(self, row: JobRow, attempt: AttemptRow | None, decision: Decision) -> bool:
        """True if the job should be looked at once more in this round."""
        points.reach(f"before {decision.action}")
        with self._tracing.span(str(decision.action), job=row.id, why=decision.why):
            again = self._do(row, attempt, decision)
        points.reach(f"after {decision.action}")
        return again

    def _do(self, row: JobRow, attempt: AttemptRow | None, decision: Decision) -> bool:
        action = decision.action
        if action is Action.OPEN:
            return self._drivers.open(row)
        if action is Action.FINISH:
            return self._drivers.finish(row)
        assert attempt is not None, decision
        acts: dict[Action, Callable[[], bool]] = {
            Action.SUBMIT: lambda: self._drivers.submit(row, attempt),
            Action.MARK_SUBMITTED: lambda: self._drivers.mark_submitted(attempt),
            Action.STOP: lambda: self._drivers.stop(attempt, decision.why),
            Action.READ_OUTCOME: lambda: self._drivers.read_outcome(attempt),
            Action.CLOSE: lambda: self._drivers.close(attempt, decision.why),
            Action.CLUSTER_LOST: lambda: self._drivers.cluster_lost(attempt, decision.why),
            Action.ABANDON: lambda: self._drivers.abandon(attempt),
            Action.SWEEP: lambda: self._sweeps.sweep(attempt),
            Action.COLLECT: lambda: self._sweeps.collect(attempt),
        }
        return acts[action]()

    # -- the whole

    def _tell_moves(self, open_attempts: list[AttemptRow], look: Look) -> None:
        try:
            self._moves.tell(open_attempts)
        except StorageError as error:
            self._no_storage(error, look)

    def _stop_strays(self, look: Look, accounted: set[tuple[str, int]]) -> None:
        """Drivers of ours that belong to no open attempt: they may start nothing, and must go."""
        if look.error is not None:
            return
        for (job_id, number, sweep), job in look.jobs.items():
            if sweep or (job_id, number) in accounted or job.status in ENDED:  # searches end by themselves
                continue
            if not self._strays.due(job.submission_id):
                continue
            log.warning("stopping %s: no open attempt accounts for it", job.submission_id)
            points.reach("before the stray is stopped")
            try:
                self._ray.stop(job.submission_id)
                points.reach("the stray is stopped")
            except (RayUnreachable, RayRefused) as error:
                self._troubles.begin(job.submission_id, f"it could not be stopped: {error}")

    def _beat(self, look: Look) -> None:
        """Write down that the loop moves, and what it saw, for readyz, `cluster` and dry runs."""
        now = self._clock.now()
        if now - self._beat_at < BEAT_EVERY_S and (look.error or "") == self._beat_error:
            return
        with self._store.write() as tx:
            installation.write(tx, "reconciler", True, now)
            nodes = [node.view() for node in look.nodes]
            seen = {"nodes": nodes, "reachable": look.error is None, "detail": look.error}
            seen["capacity_max"] = [shape.view() for shape in self._capacity_max] or None
            if look.error is not None and (before := installation.read(tx, "cluster")):
                seen["nodes"] = before[1]["nodes"]  # the last that was known
            installation.write(tx, "cluster", seen, now)
        points.reach("the beat is noted")
        self._beat_at, self._beat_error = now, look.error or ""

"""The loop that moves what is to what is wanted. It may be killed between any two lines.

Each round looks at Ray, asks `decide` about every job that has a driver or needs one, asks `plan` who gets
workers, and stops what no open attempt accounts for. What it will do is written down before Ray is asked to
do it, so the next round, of this process or another, finds out how far it came.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from elastrain.service import ids, outcomes, settle
from elastrain.service.auth import digest
from elastrain.service.changes import RECONCILER, Changes
from elastrain.service.clock import Clock
from elastrain.service.decide import STOP_AGAIN_S, Action, Decision, Limits, Seen, decide
from elastrain.service.jobs import ACTIVE, Status
from elastrain.service.placement import Placement
from elastrain.service.ray_jobs import ENDED, AlreadySubmitted, Launch, Ray, RayJob, RayNode, RayUnreachable
from elastrain.service.settings import Settings
from elastrain.service.store import Store, attempts, installation, jobs
from elastrain.service.store.rows import AttemptRow, JobRow
from elastrain.trainers.storage import Storage, StorageError

log = logging.getLogger(__name__)

ROUND_S = 1.0
# how often what was seen is written down although nothing changed
BEAT_EVERY_S = 5.0
# nodes come and go slowly, and listing them costs Ray's head more than listing jobs
NODES_EVERY_S = 5.0
# one round takes a job this many steps at most: closed, opened, submitted
STEPS = 4


@dataclass
class Look:
    """Ray, as one round sees it. error: why it cannot be reached; then the rest says nothing."""

    at: float
    jobs: dict[tuple[str, int], RayJob] = field(default_factory=dict)
    nodes: list[RayNode] = field(default_factory=list)
    error: str | None = None

    def of(self, attempt: AttemptRow | None) -> Seen:
        if self.error is not None:
            return Seen("unknown", self.error)
        found = None if attempt is None else self.jobs.get((attempt.job, attempt.number))
        if found is None:
            older = attempt is not None and (attempt.submitted_at or 0.0) >= self.at
            return Seen("unknown", "the answer is older than the attempt") if older else Seen("absent")
        if found.status in ENDED:
            return Seen(
                "ended", f"Ray says {found.status}: {found.message.strip()[-2000:] or 'nothing more'}"
            )
        return Seen("alive")


class Reconciler:
    """Only caches live in memory. One thread calls `round` or `run`."""

    def __init__(
        self, store: Store, storage: Storage, ray: Ray, settings: Settings, clock: Clock, changes: Changes
    ) -> None:
        self._store = store
        self._storage = storage
        self._ray = ray
        self._settings = settings
        self._clock = clock
        self._changes = changes
        self._limits = Limits(settings.cancel_grace_s, settings.claim_timeout_s, clock.now())
        self._placement = Placement(store, settings.driver_cpu, changes)
        self._installation = ""
        self._nodes: tuple[float, list[RayNode]] = (float("-inf"), [])
        self._beat_at = float("-inf")
        self._beat_error: str | None = None
        self._asked_at: dict[str, float] = {}  # submission id or job: when it was last stopped or looked for
        self._said: dict[str, str] = {}  # the last thing logged about something, so that it is logged once
        self.admitting = True
        """Whether waiting jobs may start; off while the service drains."""

    def run(self, stop: threading.Event) -> None:
        """Rounds until told to stop, each as soon as something changed, at the latest after ROUND_S."""
        while not stop.is_set():
            seen = self._changes.count(RECONCILER)
            try:
                self.round()
                self._say("round", "")
            except Exception:  # a database that is away for a minute must not end the loop
                log.exception("a round failed; the next one tries again")
                stop.wait(ROUND_S)
            self._changes.wait(RECONCILER, seen, ROUND_S)

    def round(self) -> None:
        """Everything once. Raises what the store raises; Ray and the object storage may be away."""
        look = self._look()
        with self._store.read() as tx:  # after the look: what Ray shows was written down before
            alive, open_attempts = jobs.alive(tx), attempts.not_ended(tx)
        drivers = {attempt.job: attempt for attempt in open_attempts}
        for row in alive:
            if row.status in ACTIVE and row.id not in drivers:
                self._advance(row.id, None, look)
        for attempt in open_attempts:
            self._advance(attempt.job, attempt.number, look)
        for job in self._placement.place(look.nodes, look.error, self._clock.now(), self.admitting):
            self._advance(job, None, look)
        self._stop_strays(look, {(attempt.job, attempt.number) for attempt in open_attempts})
        self._beat(look)

    # -- looking

    def _look(self) -> Look:
        look = Look(self._clock.now())
        try:
            if not self._installation:
                with self._store.write() as tx:
                    self._installation = installation.installation_id(tx, look.at)
            for job in self._ray.jobs():
                if (ours := ids.parse_submission(self._installation, job.submission_id)) is not None:
                    look.jobs[ours] = job
            if look.at - self._nodes[0] >= NODES_EVERY_S:
                self._nodes = (look.at, self._ray.nodes())
            look.nodes = self._nodes[1]
        except RayUnreachable as error:
            look.error = str(error)
            self._nodes = (float("-inf"), [])
        self._say("ray", f"Ray cannot be reached: {look.error}" if look.error else "")
        return look

    # -- one job

    def _advance(self, job: str, number: int | None, look: Look) -> None:
        """As many steps as can be taken now. Trouble with one job leaves the others alone."""
        try:
            for _ in range(STEPS):
                with self._store.read() as tx:
                    row = jobs.get(tx, job)
                    attempt = self._driver_of(attempts.of_job(tx, job), number)
                decision = decide(row, attempt, look.of(attempt), self._clock.now(), self._limits)
                if decision.action is Action.NOTHING or not self._act(row, attempt, decision, look):
                    break
                number = None
        except RayUnreachable as error:
            look.error = look.error or str(error)
            self._say(job, f"job {job}: {error}")
        except StorageError as error:
            self._say(job, f"job {job}: the object storage does not answer, it stays as it is: {error}")
        except LookupError:
            log.info("job %s is no longer there", job)

    def _driver_of(self, known: list[AttemptRow], number: int | None) -> AttemptRow | None:
        still = [attempt for attempt in known if attempt.state != "ended"]
        wanted = [attempt for attempt in still if number in (None, attempt.number)]
        return wanted[0] if wanted else None

    def _act(self, row: JobRow, attempt: AttemptRow | None, decision: Decision, look: Look) -> bool:
        """Do it; True if the job should be looked at once more in this round."""
        action = decision.action
        if action is Action.OPEN:
            return self._open(row)
        if action is Action.FINISH:
            return self._finish(row)
        assert attempt is not None, decision
        acts: dict[Action, Callable[[], bool]] = {
            Action.SUBMIT: lambda: self._submit(attempt),
            Action.MARK_SUBMITTED: lambda: self._mark_submitted(attempt),
            Action.STOP: lambda: self._stop(attempt, decision.why),
            Action.READ_OUTCOME: lambda: self._read_outcome(attempt),
            Action.CLOSE: lambda: self._close(attempt, look.of(attempt), decision.why),
        }
        return acts[action]()

    def _open(self, row: JobRow) -> bool:
        """Write the attempt down before Ray hears of it."""
        now, code = self._clock.now(), secrets.token_urlsafe(32)
        with self._store.write() as tx:
            row = jobs.lock(tx, row.id)
            known = attempts.of_job(tx, row.id)
            if row.status is not Status.STARTING or any(attempt.state != "ended" for attempt in known):
                return False
            number = row.attempt + 1
            attempts.open_new(
                tx,
                row.id,
                number,
                submission_id=ids.submission_id(self._installation, row.id, number),
                code=code,
                code_digest=digest(code),
                token_secret=secrets.token_urlsafe(32),
                at=now,
            )
            jobs.change(tx, row.id, attempt=number, attempts_made=row.attempts_made + 1)
        return True

    def _submit(self, attempt: AttemptRow) -> bool:
        """If this process dies behind the call, the next round finds the driver in Ray, or calls again."""
        assert attempt.code is not None
        env = {
            "ELASTRAIN_DRIVER_URL": self._settings.driver_url,
            "ELASTRAIN_JOB": attempt.job,
            "ELASTRAIN_ATTEMPT_NUMBER": str(attempt.number),
            "ELASTRAIN_CLAIM": attempt.code,
        }
        entrypoint = f"{self._settings.driver_python} -m elastrain.trainers.driver"
        try:
            self._ray.submit(Launch(attempt.submission_id, entrypoint, env, self._settings.driver_cpu))
        except AlreadySubmitted:
            if self._ray.job(attempt.submission_id) is None:
                raise RayUnreachable("Ray says that it has the driver, and does not show it") from None
        return self._mark_submitted(attempt)

    def _mark_submitted(self, attempt: AttemptRow) -> bool:
        now = self._clock.now()
        with self._store.write() as tx:
            jobs.lock(tx, attempt.job)
            current = attempts.get(tx, attempt.job, attempt.number)
            if current is not None and current.state == "submitting":
                attempts.change(tx, attempt.job, attempt.number, state="submitted", submitted_at=now)
        return True

    def _stop(self, attempt: AttemptRow, why: str) -> bool:
        log.info("job %s: asking Ray to stop attempt %d: %s", attempt.job, attempt.number, why)
        with self._store.write() as tx:
            attempts.change(tx, attempt.job, attempt.number, stop_asked_at=self._clock.now())
        self._ray.stop(attempt.submission_id)
        return False

    def _read_outcome(self, attempt: AttemptRow) -> bool:
        """While Ray is away: a driver that finished has left its outcome, which needs no Ray to be true."""
        if self._asked_lately(f"outcome {attempt.submission_id}"):
            return False
        end = outcomes.read(self._storage, attempt.job, attempt.number)
        if end is not None:
            with self._store.write() as tx:
                row = jobs.lock(tx, attempt.job)
                current = attempts.get(tx, attempt.job, attempt.number)
                if current is not None and row.attempt == attempt.number:
                    settle.settle(tx, row, current, end, self._clock.now())
            self._changes.tell(attempt.job)
        return False

    def _close(self, attempt: AttemptRow, seen: Seen, why: str) -> bool:
        """The driver is gone, whatever it was: its outcome counts, or it is lost. One transaction."""
        end = None
        if attempt.claimed_at is not None and attempt.outcome is None:
            end = outcomes.read(self._storage, attempt.job, attempt.number)
        if end is None:
            end = settle.End(None, None, "infrastructure", _lost(attempt, why))
        now = self._clock.now()
        with self._store.write() as tx:
            row = jobs.lock(tx, attempt.job)
            current = attempts.get(tx, attempt.job, attempt.number)
            if current is None or current.state == "ended" or current.claimed_at != attempt.claimed_at:
                return False
            if row.attempt == attempt.number:
                settle.settle(tx, row, current, end, now)
            attempts.change(tx, attempt.job, attempt.number, state="ended", ended_at=now, code=None)
        self._changes.tell(attempt.job)
        return True

    def _finish(self, row: JobRow) -> bool:
        with self._store.write() as tx:
            row = jobs.lock(tx, row.id)
            still = any(attempt.state != "ended" for attempt in attempts.of_job(tx, row.id))
            if not still and row.status in (Status.CANCELLING, Status.PAUSING):
                settle.without_attempt(tx, row, self._clock.now())
        self._changes.tell(row.id)
        return False

    # -- the whole

    def _stop_strays(self, look: Look, accounted: set[tuple[str, int]]) -> None:
        """Drivers of ours that belong to no open attempt: they may start nothing, and must go."""
        if look.error is not None:
            return
        for key, job in look.jobs.items():
            if key in accounted or job.status in ENDED or self._asked_lately(job.submission_id):
                continue
            log.warning("stopping %s: no open attempt accounts for it", job.submission_id)
            try:
                self._ray.stop(job.submission_id)
            except RayUnreachable as error:
                self._say(job.submission_id, f"{job.submission_id} could not be stopped: {error}")

    def _beat(self, look: Look) -> None:
        """Write down that the loop moves, and what it saw, for readyz, `cluster` and dry runs."""
        now = self._clock.now()
        if now - self._beat_at < BEAT_EVERY_S and look.error == self._beat_error:
            return
        nodes = [
            {"id": node.id, "alive": node.alive, "resources": node.resources, "used": node.used}
            for node in look.nodes
        ]
        with self._store.write() as tx:
            installation.write(tx, "reconciler", True, now)
            seen = {"nodes": nodes, "reachable": look.error is None, "detail": look.error}
            if look.error is not None and (before := installation.read(tx, "cluster")):
                seen["nodes"] = before[1]["nodes"]  # the last that was known
            installation.write(tx, "cluster", seen, now)
        self._beat_at, self._beat_error = now, look.error

    def _asked_lately(self, what: str) -> bool:
        now = self._clock.now()
        if now - self._asked_at.get(what, float("-inf")) < STOP_AGAIN_S:
            return True
        if len(self._asked_at) > 10_000:
            self._asked_at.clear()
        self._asked_at[what] = now
        return False

    def _say(self, about: str, text: str) -> None:
        """Log a trouble once, and its end; not every second."""
        if self._said.get(about, "") == text:
            return
        if text:
            log.warning("%s", text)
            self._said[about] = text
        else:
            log.info("%s: well again", about)
            self._said.pop(about, None)


def _lost(attempt: AttemptRow, why: str) -> str:
    if attempt.claimed_at is None:
        return f"The driver of attempt {attempt.number} never called the service. {why}"
    return f"The driver of attempt {attempt.number} ended without an outcome. {why}"

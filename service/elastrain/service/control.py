"""Control is everything that the API may ask of the service, one method per question.

All methods are synchronous and thread-safe, take who is asking as `actor`, and return plain dicts in the
shapes of the API (times RFC 3339, no NaN). They raise the errors of `errors.py`, and nothing else on purpose.
A job is named by its id or an unambiguous beginning of it; what another project owns is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from elastrain.service import views
from elastrain.service.auth import Actor, Auth
from elastrain.service.bulk import Bulk
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock, SystemClock
from elastrain.service.commands import Commands
from elastrain.service.driver_line import DriverLine
from elastrain.service.finding import find
from elastrain.service.idempotency import Once
from elastrain.service.job_actions import JobActions
from elastrain.service.listings import Listings, feed_page, find_checkpoint
from elastrain.service.logs import LogReader
from elastrain.service.meters import Meters
from elastrain.service.monitoring import known
from elastrain.service.objects import Objects
from elastrain.service.packages import Packages, PackageUpload
from elastrain.service.patching import Patching
from elastrain.service.projects import Projects
from elastrain.service.readiness import Readiness
from elastrain.service.removal import Removal
from elastrain.service.retention import DAY_S, Retention
from elastrain.service.settings import Settings
from elastrain.service.store import Store
from elastrain.service.submission import Submission
from elastrain.service.tracing import NO_TRACING, Tracing
from elastrain.trainers.storage import Storage

__all__ = ["Actor", "Control"]

Json = dict[str, Any]


class Control(JobActions):
    """The facade over store and object storage. Holds nothing that a restart would miss."""

    def __init__(
        self,
        store: Store,
        storage: Storage,
        settings: Settings,
        *,
        ping_ray: Callable[[], str],
        clock: Clock | None = None,
        changes: Changes | None = None,
        meters: Meters | None = None,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """ping_ray: returns Ray's version, or raises with the reason why it cannot be reached."""
        self.store = store
        self.settings = settings
        self.clock = clock or SystemClock()
        self.changes = changes or Changes()
        self.meters = meters or Meters()
        self.tracing = tracing
        self.known = known(store, self.clock)
        self.auth = Auth(store, self.clock)
        self.objects = Objects(storage)
        self.packages = Packages(store, storage, settings, self.clock)
        self._logs = LogReader(store, storage)
        retention = Retention(settings.keep_ended_days * DAY_S)
        self._views = views.JobViews(settings.dashboard_url, retention, self.clock)
        self._listings = Listings(store, self._views)
        self.once = Once(store, self._views, self.clock)
        self._submission = Submission(
            store, self.once, self.packages, self._views, settings.driver, self.clock, self.changes
        )
        self._commands = Commands(store, self.once, self._views, self.clock, self.changes)
        self._patching = Patching(store, self._views, self.clock, self.changes)
        self._bulk = Bulk(store, self.once, self.clock, self.changes)
        self._removal = Removal(store, self._views, self.clock)
        self.projects = Projects(store, self.once, self.clock, self.changes)
        self._drivers = DriverLine(store, settings, self.clock, self.changes, self.meters)
        self._readiness = Readiness(store, storage, ping_ray, self.clock)

    # -- who is asking

    def authenticate(self, bearer: str | None) -> Actor:
        """Raises Unauthenticated."""
        return self.auth.authenticate(bearer)

    def me(self, actor: Actor) -> Json:
        """{id, name, role, project}"""
        return dict(actor.view())

    # -- jobs

    def list_jobs(
        self,
        *,
        actor: Actor,
        status: str | None = None,
        project: str | None = None,
        label: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Json:
        """{items: [job], next_cursor}, newest first. status: one or more, with commas; label: key:value."""
        return self._listings.jobs(actor, status, project, label, limit, cursor)

    def job(self, job_id: str, *, actor: Actor) -> Json:
        """The job as the contract has it."""
        with self.store.read() as tx:
            return self._views.one(tx, find(tx, job_id, actor))

    def open_attempts(self) -> list[str]:
        """Ids of the jobs that have a driver now or are getting one."""
        return self._listings.open_attempts()

    # -- what a job leaves behind

    def events(self, job_id: str, *, actor: Actor, after: int = 0, limit: int = 100) -> Json:
        """{items: [{id, at, type, message, data}], next_cursor}; id is the position, `after` excludes it."""
        return self._listings.events(actor, job_id, after, limit)

    def metrics(
        self,
        job_id: str,
        *,
        actor: Actor,
        names: Collection[str] | None = None,
        from_step: int = 0,
        points: int = 1000,
    ) -> Json:
        """{name: [[step, value, at], ...], ..., superseded: [[from, to, attempt], ...]}, steps ascending.

        At most `points` per name, evenly thinned, the newest always among them.
        """
        return self._listings.metrics(actor, job_id, names, from_step, points)

    def logs(
        self,
        job_id: str,
        *,
        actor: Actor,
        worker: str | None = None,
        attempt: int | None = None,
        offset: int | None = None,
        limit: int = 65536,
        tail: int | None = None,
        cursor: str | None = None,
    ) -> Json:
        """{items: [{offset, at, worker, attempt, text}], next_offset, next_cursor, size, truncated}

        With a worker: `limit` bytes of its file from `offset`; next_offset continues. Without: all workers
        of the attempt, in the order in which their output arrived; next_cursor continues. tail: the last
        lines. A text keeps its newline, so joined texts are the file.
        """
        with self.store.read() as tx:
            row = find(tx, job_id, actor)
        return self._logs.lines(row, worker, attempt, offset, limit, tail, cursor)

    def log_bytes(
        self, job_id: str, *, actor: Actor, worker: str, attempt: int | None = None, offset: int = 0
    ) -> tuple[int, Iterator[bytes]]:
        """(bytes that follow, the raw output of a worker from `offset` on)"""
        with self.store.read() as tx:
            row = find(tx, job_id, actor)
        return self._logs.raw(row, worker, attempt, offset)

    def workers(self, job_id: str, *, actor: Actor, attempt: int | None = None) -> Json:
        """{items: [worker], next_cursor: None} of the current attempt, or of the one asked for."""
        return self._listings.workers(actor, job_id, attempt)

    def generations(self, job_id: str, *, actor: Actor, limit: int = 100, cursor: str | None = None) -> Json:
        """{items: [generation], next_cursor}, oldest first, over all attempts."""
        return self._listings.generations(actor, job_id, limit, cursor)

    def checkpoints(self, job_id: str, *, actor: Actor) -> Json:
        """{items: [checkpoint], next_cursor: None}, oldest first."""
        return self._listings.checkpoints(actor, job_id)

    def checkpoint_file(
        self, job_id: str, step: int | str, file: str, *, actor: Actor
    ) -> tuple[int, Iterator[bytes]]:
        """(bytes, the contents) of a file that the checkpoint lists; step may be "latest"."""
        with self.store.read() as tx:
            row = find(tx, job_id, actor)
            checkpoint = find_checkpoint(tx, row, step)
        return self.objects.checkpoint_file(row.id, checkpoint, file)

    def feed(
        self, job_id: str, *, actor: Actor, after: int, kinds: Collection[str], limit: int = 500
    ) -> Json:
        """What happened after a position, for Server-Sent Events; kinds among event, metric, log.

        {rows: [{position, kind, data}], position, end}: continue after `position`; `end` is the job's final
        {status, reason, message, failed_by} once it has ended and all rows are out, else None.
        metric data: {step, at, attempt, epoch_no, values: {name: value}}; log data: {offset, at, worker,
        attempt, text}, where text may hold several lines.
        """
        with self.store.read() as tx:
            row = find(tx, job_id, actor)
            page = feed_page(tx, row, after, kinds, limit, self.clock.now())
        self._logs.fill(row.id, page["rows"])
        return page

    # -- code packages

    def package_upload(
        self, sha256: str, *, actor: Actor, project: str = "default", declared_bytes: int | None = None
    ) -> PackageUpload:
        """A sink for the bytes: write(chunk)..., then finish() -> created; use it as a context manager.

        Raises TooLarge, Invalid, Forbidden.
        """
        return self.packages.upload(sha256, actor, project, declared_bytes)

    def has_package(self, sha256: str, *, actor: Actor, project: str = "default") -> bool:
        """Whether the package is there and this project may use it."""
        return self.packages.has(sha256, actor, project)

    # -- the whole

    def cluster(self, *, actor: Actor) -> Json:
        """{nodes: [{id, alive, resources, used}], capacity_max, reachable, detail, at}, as last seen."""
        return self._listings.cluster()

    def queue(self, *, actor: Actor) -> Json:
        """{items: [{id, name, project, priority, position, blocked_by, short_of}], next_cursor: None}"""
        return self._listings.queue(actor)

    def counts(self) -> dict[str, int]:
        """{status: jobs in it}, every status among them, over all projects."""
        return self._listings.counts()

    def version(self) -> Json:
        """{server, api, min_client}"""
        return views.version()

    def readyz(self) -> Json:
        """{ready, checks: {database|objects|ray|reconciler: {ok, detail, age_s}}}, at most 10 s old."""
        return self._readiness.check()

    def database_ok(self) -> bool:
        """For `/healthz?db=1`: whether the store takes a write now."""
        return self._readiness.database_ok()

    # -- drivers: these check the driver's own secrets, not an actor

    def driver_claim(self, body: Mapping[str, Any]) -> Json:
        """{protocol, job, attempt, code, nonce} -> what an attempt needs. Raises Forbidden, Invalid."""
        return self._drivers.claim(body)

    def driver_met(self, token: str | None) -> bool:
        """Whether `driver_meet` has let this token pass before; asks nobody."""
        return self._drivers.met(token)

    def driver_meet(self, token: str | None) -> None:
        """Let only those pass that have a driver's token, before anything of what they say is read.

        Raises Unauthenticated.
        """
        self._drivers.meet(token)

    def driver_facts(self, token: str, body: Mapping[str, Any]) -> Json:
        """{attempt, first_seq, facts} -> {acked_seq, desired_version}.

        Raises Gone, Unauthenticated, Invalid.
        """
        return self._drivers.facts(token, body)

    def driver_desired(self, token: str) -> Json:
        """{version, desired, workers: {min, max, target}, checkpoint_no, checkpoint_done}, as it is now; who
        waits for another version watches `changes`. Raises Gone, Unauthenticated.
        """
        return self._drivers.desired(token)

    def driver_version(self, token: str) -> tuple[str, int]:
        """(job, version of what is desired of its driver). Raises Gone, Unauthenticated."""
        return self._drivers.version(token)

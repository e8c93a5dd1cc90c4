"""A service of which everything is ours: its clock, its Ray, its drivers. Time passes when a test says so."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from elastrain.service.auth import Actor
from elastrain.service.changes import Changes
from elastrain.service.cluster_check import ours
from elastrain.service.control import Control
from elastrain.service.meters import Meters
from elastrain.service.migrations import migrate
from elastrain.service.ray_jobs import AlreadySubmitted, Launch, RayJob, RayNode, RayRefused, RayUnreachable
from elastrain.service.reconciler import Reconciler
from elastrain.service.removal import Janitor
from elastrain.service.settings import Settings
from elastrain.service.store import Store
from elastrain.service.store.schema import metadata
from elastrain.trainers.storage import AlreadyExists, open_storage

SPEC: dict[str, Any] = {
    "name": "digits",
    "task": "elastrain.trainers.tasks.digits:Digits",
    "batch": {"size": 64, "microbatch": 16},
    "steps": 100,
    "workers": {"min": 1, "max": 2},
}
ADMIN = Actor("t-admin", "admin", "admin")
START_S = 1_800_000_000.0
NONCE = "nonce-of-the-first-driver"


class FakeClock:
    def __init__(self) -> None:
        self.at = START_S

    def now(self) -> float:
        self.at += 0.001  # two readings differ, as in life
        return self.at

    def pass_s(self, seconds: float) -> None:
        self.at += seconds


class FakeRay:
    """Ray as far as the service sees it. `stubborn` drivers stay RUNNING however often they are stopped."""

    def __init__(self, cpus: float = 2.0) -> None:
        self.known: dict[str, RayJob] = {}
        self.launches: list[Launch] = []
        self.stops: list[str] = []
        self.cluster = [RayNode("n1", True, {"CPU": cpus}, {})]
        self.trouble: str | None = None
        self.stubborn = False
        self.full = False  # takes no driver, as a head whose agents are away
        self.session_name = "session_1"
        self.searches: list[Launch] = []
        self.finds: list[str] = []  # what the next searches print; then: that nothing is left
        self.printed: dict[str, str] = {}
        self.checks: dict[str, Launch] = {}  # of the cluster, by their ids; what each finds:
        self.installed: dict[str, Any] = {**ours(), "ray": "2.60.0", "torch": "2.13.0"}

    def version(self) -> str:
        self._reached()
        return "2.60.0"

    def session(self) -> str:
        self._reached()
        return self.session_name

    def begin_anew(self, session: str) -> None:
        """The head was restarted, and knows nothing of before."""
        self.session_name, self.trouble = session, None
        self.known.clear()

    def jobs(self) -> list[RayJob]:
        self._reached()
        return list(self.known.values())

    def job(self, submission_id: str) -> RayJob | None:
        self._reached()
        if submission_id in self.checks:
            return RayJob(submission_id, "SUCCEEDED", "")
        return self.known.get(submission_id)

    def submit(self, launch: Launch) -> None:
        self._reached()
        if launch.submission_id in self.known:
            raise AlreadySubmitted(launch.submission_id)
        if self.full:
            raise RayRefused("Ray did not take the driver (500): no available agent")
        if "ray_sweep" in launch.entrypoint:
            self._search(launch)
            return
        if "cluster_check" in launch.entrypoint:
            self.checks[launch.submission_id] = launch
            return
        self.launches.append(launch)
        self.set(launch.submission_id, "RUNNING")

    def _search(self, launch: Launch) -> None:
        self.searches.append(launch)
        nodes = [{"node": node.id, "pids": [], "left": [], "seconds": 0.1} for node in self.cluster]
        clean = "ELASTRAIN-RECEIPT " + json.dumps({"nodes": nodes, "unsearched": [], "seconds": 0.2})
        self.printed[launch.submission_id] = self.finds.pop(0) if self.finds else clean
        self.set(launch.submission_id, "SUCCEEDED")

    def logs(self, submission_id: str) -> str:
        self._reached()
        if submission_id in self.checks:
            return f"ELASTRAIN-CLUSTER {json.dumps(self.installed)}"
        return self.printed.get(submission_id, "")

    def stop(self, submission_id: str) -> None:
        self._reached()
        self.stops.append(submission_id)
        if submission_id in self.known and not self.stubborn:
            self.set(submission_id, "STOPPED", "Job was intentionally stopped.")

    def nodes(self) -> list[RayNode]:
        self._reached()
        return self.cluster

    def set(self, submission_id: str, status: Any, message: str = "") -> None:
        self.known[submission_id] = RayJob(submission_id, status, message)

    def _reached(self) -> None:
        if self.trouble is not None:
            raise RayUnreachable(self.trouble)


@cache
def migrated() -> bytes:
    """An empty database with all tables, made once: a hundred worlds need not migrate a hundred times."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fresh.db"
        migrate(f"sqlite:///{file}")
        return file.read_bytes()


class World:
    """One installation in a folder. `restart` is a kill -9 of the service and the next start."""

    def __init__(
        self,
        folder: Path,
        cpus: float = 2.0,
        database: str | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        """database: URL of one that has all tables already; SQLite in the folder unless given."""
        folder.mkdir(parents=True, exist_ok=True)
        env = {"ELASTRAIN_HOME": str(folder), "ELASTRAIN_DRIVER_URL": "http://127.0.0.1:8470", **(env or {})}
        self.settings = Settings.from_env({**env, "ELASTRAIN_DATABASE_URL": database or ""})
        self.clock, self.ray = FakeClock(), FakeRay(cpus)
        self.storage = open_storage(self.settings.storage_url)
        if database is None:
            (folder / "elastrain.db").write_bytes(migrated())
        self.start()

    def restart(self) -> None:
        self.store.close()
        self.start()

    def start(self) -> None:
        self.store = Store(self.settings.database_url)
        changes, self.meters = Changes(), Meters()
        self.control = Control(
            self.store,
            self.storage,
            self.settings,
            ping_ray=self.ray.version,
            clock=self.clock,
            changes=changes,
            meters=self.meters,
        )
        parts = (self.store, self.storage, self.ray, self.settings, self.clock, changes, self.meters)
        self.reconciler = Reconciler(*parts)
        self.janitor = Janitor(self.store, self.storage, self.settings, self.clock)

    def round(self, after_s: float = 1.0) -> None:
        self.clock.pass_s(after_s)
        self.reconciler.round()

    def submit(self, **changes: Any) -> str:
        job, created = self.control.submit({**SPEC, **changes}, actor=ADMIN)
        assert created
        return str(job["id"])

    def job(self, id: str) -> dict[str, Any]:
        return self.control.job(id, actor=ADMIN)

    def status(self, id: str) -> str:
        return str(self.job(id)["status"])

    def events(self, id: str, type: str = "") -> list[dict[str, Any]]:
        items = self.control.events(id, actor=ADMIN, limit=1000)["items"]
        return [item for item in items if item["type"].startswith(type)]

    def stored(self) -> str:
        """Everything that the database holds, as text."""
        with self.store.read() as tx:
            return "\n".join(str(tx.execute(table.select()).all()) for table in metadata.sorted_tables)

    def metric(self, name: str, **labels: str) -> float | None:
        """What Prometheus would read now; a name as it stands in /metrics."""
        found = (r.get_sample_value(name, labels) for r in (self.meters.registry, self.control.known))
        return next((value for value in found if value is not None), None)

    def cancel(self, id: str) -> dict[str, Any]:
        return self.control.cancel(id, actor=ADMIN)

    def ask(self, action: str, id: str, key: str | None = None) -> dict[str, Any]:
        return self.control.ask(action, id, actor=ADMIN, idempotency_key=key)

    def running(self, **changes: Any) -> tuple[str, Driver]:
        """A job whose driver has claimed its attempt and reports that it runs."""
        id = self.submit(**changes)
        self.round()
        driver = self.driver(id)
        driver.claim()
        driver.post({"kind": "progress", "status": "running", "step": 0, "total_steps": 100})
        return id, driver

    def driver(self, id: str) -> Driver:
        """The newest driver that Ray was asked to start for this job."""
        launch = [launch for launch in self.ray.launches if launch.env["ELASTRAIN_JOB"] == id][-1]
        return Driver(self, launch)


class Driver:
    """What a driver says to the service."""

    def __init__(self, world: World, launch: Launch) -> None:
        self.world = world
        self.launch = launch
        self.job = launch.env["ELASTRAIN_JOB"]
        self.attempt = int(launch.env["ELASTRAIN_ATTEMPT_NUMBER"])
        self.seq = 1
        self.token = ""

    @classmethod
    def known(cls, world: World, job: str, token: str, seq: int) -> Driver:
        """The first driver of a job that was started before this world was; `seq` is its next fact."""
        driver = cls(world, Launch("", "", {"ELASTRAIN_JOB": job, "ELASTRAIN_ATTEMPT_NUMBER": "1"}))
        driver.token, driver.seq = token, seq
        return driver

    def claim(self, nonce: str = NONCE) -> dict[str, Any]:
        body = {"protocol": 1, "job": self.job, "attempt": self.attempt, "nonce": nonce}
        answer = self.world.control.driver_claim({**body, "code": self.launch.env["ELASTRAIN_CLAIM"]})
        self.token = answer["token"]
        return answer

    def post(self, *facts: dict[str, Any], first_seq: int | None = None) -> dict[str, Any]:
        first = self.seq if first_seq is None else first_seq
        body = {"attempt": self.attempt, "first_seq": first, "facts": list(facts)}
        answer = self.world.control.driver_facts(self.token, body)
        self.seq = max(self.seq, first + len(facts))
        return answer

    def spools(self, *facts: dict[str, Any], first_seq: int | None = None) -> None:
        """Kept in storage, since the service did not answer."""
        first = self.seq if first_seq is None else first_seq
        body = json.dumps({"first_seq": first, "facts": list(facts)}).encode()
        self.world.storage.put(f"jobs/{self.job}/attempts/{self.attempt}/spool/{first:012d}.json", body)
        self.seq = max(self.seq, first + len(facts))

    def desired(self) -> dict[str, Any]:
        return self.world.control.driver_desired(self.token)

    def step(self, step: int, epoch_no: int = 0, **values: float) -> None:
        self.post(
            {"kind": "metric", "step": step, "values": values or {"loss": 1.0 / step}, "epoch_no": epoch_no}
        )

    def saves(self, step: int) -> None:
        self.post({"kind": "checkpoint", "step": step, "state": "saved", "bytes": 10, "files": []})

    def writes_outcome(self, outcome: str, **more: Any) -> dict[str, Any]:
        """Durable, before it exits."""
        receipt = {"nodes": [], "unsearched": [], "seconds": 0.1}
        body = {
            "outcome": outcome,
            "step": 100,
            "failed_by": None,
            "message": None,
            "receipt": receipt,
        } | more
        try:
            self.world.storage.put(
                f"jobs/{self.job}/attempts/{self.attempt}/outcome.json", json.dumps(body).encode()
            )
        except AlreadyExists:
            pass
        return body

    def exits(self, status: Any = "SUCCEEDED", message: str = "") -> None:
        self.world.ray.set(self.launch.submission_id, status, message)

    def ends(self, outcome: str, **more: Any) -> None:
        """The whole good end: outcome written, posted, process gone."""
        body = self.writes_outcome(outcome, **more)
        self.post({"kind": "outcome", **body})
        self.exits()

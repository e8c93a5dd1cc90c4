"""What this service process counts for Prometheus: how it works, and how the jobs fare that it looks after.

Counters live as long as their process and are added up over replicas; what the store knows is read at each
scrape instead (monitoring.py) and is the same from every replica. No label grows with jobs, users or paths.
docs/monitoring.md lists them all.
"""

from __future__ import annotations

import math
from collections import Counter as Count
from collections.abc import Iterable, Mapping
from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from elastrain.service.jobs import Reason, Status
from elastrain.service.reports import Taken
from elastrain.service.store.rows import JobRow

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each

REQUEST_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
ROUND_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
WAIT_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
CHECKPOINT_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# a round that comes later than this was not made by us, or found nothing to do it with
LONGEST_ROUND_S = 10.0
PHASES = ("starting", "recovering", "training", "waiting", "ending")
EVENTS = {"worker.lost": "lost", "worker.replaced": "replaced", "straggler.detected": "slow"}
TROUBLES = ("database", "ray", "ray_refused", "object_storage", "round")


class Meters:
    """Thread-safe. One per process; tests have one each."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._counter = partial(Counter, registry=self.registry)
        self._histogram = partial(Histogram, registry=self.registry)
        self._requests()
        self._reconciler()
        self._jobs()
        self._seen_at: float | None = None  # when time was counted last

    def _requests(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.requests = counter(
            "elastrain_http_requests",
            "Requests answered.",
            ["method", "route", "status"],
        )
        self.request_s = histogram(
            "elastrain_http_request_duration_seconds",
            "From a request's arrival to the first byte of its answer; drivers' long polls wait by design.",
            ["method", "route"],
            buckets=REQUEST_S,
        )
        self.problems = counter(
            "elastrain_http_problems",
            "Requests refused or failed, by problem code.",
            ["code"],
        )
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def _reconciler(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.leads = Gauge(
            "elastrain_reconciler_leader",
            "1 if this process moves the jobs.",
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self.round_s = histogram(
            "elastrain_reconciler_round_duration_seconds",
            "One round, if we lead.",
            buckets=ROUND_S,
        )
        self.troubles = counter(
            "elastrain_reconciler_errors",
            "Rounds, or parts of them, that failed.",
            ["kind"],
        )
        self.queue_s = histogram(
            "elastrain_queue_wait_seconds",
            "From the moment a job was queued until workers were granted to it.",
            buckets=WAIT_S,
        )
        for kind in TROUBLES:
            self.troubles.labels(kind)

    def _jobs(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.job_s = counter(
            "elastrain_job_seconds",
            "Time of jobs that have or want a driver, by what it went to.",
            ["phase"],
        )
        self.pauses = counter("elastrain_pauses", "Generations formed: training paused for each.")
        self.pause_s = counter(
            "elastrain_pause_seconds",
            "Time of training in which workers formed a generation.",
        )
        self.steps = counter("elastrain_steps", "Steps accepted, those computed again among them.")
        self.lost_steps = counter(
            "elastrain_lost_steps",
            "Accepted steps that had to be computed again.",
        )
        self.lost_s = counter("elastrain_lost_seconds", "Training time that went into lost steps.")
        self.workers = counter("elastrain_worker_events", "What happened to workers.", ["event"])
        self.saved_s = histogram(
            "elastrain_checkpoint_duration_seconds",
            "From the copy of the state to the manifest, behind the training.",
            buckets=CHECKPOINT_S,
        )
        self.saved_bytes = counter("elastrain_checkpoint_bytes", "Bytes of checkpoints saved.")
        self.unsaved = counter(
            "elastrain_checkpoint_failures",
            "Checkpoints that were not saved, or found damaged.",
        )
        for phase in PHASES:
            self.job_s.labels(phase)
        for event in EVENTS.values():
            self.workers.labels(event)

    # -- the API

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered. route: the template of the path, never the path."""
        key = (method if method in METHODS else "other", route, status)
        known = self._known.get(key)
        if known is None:
            known = (self.requests.labels(*key[:2], str(status)), self.request_s.labels(*key[:2]))
            self._known[key] = known
        known[0].inc()
        known[1].observe(seconds)

    # -- the reconciler

    def passes(self, active: Iterable[JobRow], now: float) -> None:
        """Time has passed for the active jobs. To be called in each round by whoever leads."""
        since, self._seen_at = self._seen_at, now
        passed_s = 0.0 if since is None else min(LONGEST_ROUND_S, max(0.0, now - since))
        for phase, count in Count(phase_of(row) for row in active).items():
            self.job_s.labels(phase).inc(count * passed_s)

    # -- what drivers tell

    def took(self, row: JobRow, taken: Taken) -> None:
        """New facts of a driver were committed. row: the job before."""
        for fact in taken.facts:
            kind = fact.get("kind")
            if kind == "metric":
                values = fact.get("values")
                if isinstance(values, Mapping) and "loss" in values:
                    self.steps.inc()
            elif kind == "generation":
                self.pauses.inc()
                self.pause_s.inc(_positive(fact.get("pause_ms")) / 1e3)
            elif kind == "checkpoint" and fact.get("state") == "saved":
                self.saved_s.observe(_positive(fact.get("seconds")))
                self.saved_bytes.inc(_positive(fact.get("bytes")))
            elif kind == "event":
                self._event(fact.get("type"))
        if taken.lost_steps:
            self.lost_steps.inc(taken.lost_steps)
            self.lost_s.inc(taken.lost_steps * _step_s(row))

    def _event(self, type_: object) -> None:
        if type_ == "checkpoint.failed":
            self.unsaved.inc()
        elif isinstance(type_, str) and type_ in EVENTS:
            self.workers.labels(EVENTS[type_]).inc()


def phase_of(row: JobRow) -> str:
    """What the time of an active job goes to."""
    if row.status is Status.STARTING:
        return "recovering" if row.reason == Reason.RECOVERING else "starting"
    if row.status is Status.RUNNING:
        return "waiting" if row.reason == Reason.WAITING_FOR_WORKERS else "training"
    return "ending"


def _step_s(row: JobRow) -> float:
    """How long a step took, as the job was measured last."""
    return float(row.spec["batch"]["size"]) / row.samples_per_s if row.samples_per_s else 0.0


def _positive(value: object) -> float:
    """A driver's number, or 0: what is wrong with it is said where it is written."""
    known = isinstance(value, int | float) and math.isfinite(value)
    return max(0.0, float(value)) if known else 0.0  # type: ignore[arg-type]

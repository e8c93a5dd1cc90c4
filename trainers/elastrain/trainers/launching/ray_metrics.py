"""A running job on Ray's dashboard: its numbers by `ray.util.metrics`; Ray puts `ray_` in front of the names.

Set from what the driver reports anyway, with its progress, twice a second. They end with the driver. One
series per job that runs: `job_id`, `job_name` and `project` are its labels (`job` is Prometheus' own).
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from ray.util.metrics import Counter, Gauge

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.spec import JobSpec

log = logging.getLogger(__name__)

LABELS = ("job_id", "job_name", "project")
GAUGES = {
    "elastrain_job_step": "Steps that were accepted.",
    "elastrain_job_step_seconds": "Time of a step, lately.",
    "elastrain_job_samples_per_second": "Samples per second, lately.",
    "elastrain_job_loss": "Loss of the newest step.",
    "elastrain_job_workers": "Workers that computed the newest step.",
    "elastrain_job_generation": "Number of the generation.",
}
COUNTERS = {
    "elastrain_job_pauses": "Generations formed: training paused for each.",
    "elastrain_job_pause_seconds": "Time of training in which workers formed a generation.",
    "elastrain_job_lost_steps": "Accepted steps that this attempt had to compute again.",
}
FROM_METRICS = {
    "loss": "elastrain_job_loss",
    "workers": "elastrain_job_workers",
    "samples_per_s": "elastrain_job_samples_per_second",
}


class JobMetrics:
    """Takes the facts of one attempt, in the driver's process. What goes wrong here never reaches the job."""

    def __init__(self, spec: JobSpec, job: str) -> None:
        tags = {"job_id": job, "job_name": spec.name, "project": spec.project}
        self._gauges = {n: Gauge(n, text, LABELS).set_default_tags(tags) for n, text in GAUGES.items()}
        self._counters = {n: Counter(n, text, LABELS).set_default_tags(tags) for n, text in COUNTERS.items()}
        self._values: dict[str, Any] = {}  # of the gauges
        self._shown: tuple[float, int] | None = None  # when, which step
        self._broken = False

    def take(self, fact: Json) -> None:
        """Note what the fact says, if it says anything of ours."""
        if self._broken:
            return
        try:
            self._take(fact)
        except Exception:
            self._broken = True
            log.exception("Ray does not take metrics any more; the job goes on without")

    def _take(self, fact: Json) -> None:
        kind = fact["kind"]
        if kind == "metric" and "loss" in fact["values"]:
            self._values["elastrain_job_step"] = fact["step"]
            self._values |= {gauge: fact["values"].get(name) for name, gauge in FROM_METRICS.items()}
        elif kind == "progress":  # twice a second
            self._show(time.monotonic())
        elif kind == "generation":
            self._values["elastrain_job_generation"] = fact["generation"]
            self._add("elastrain_job_pauses", 1)
            self._add("elastrain_job_pause_seconds", fact["pause_ms"] / 1e3)
        elif kind == "event" and fact["type"] == "rollback":
            self._shown = None
            self._add("elastrain_job_lost_steps", fact["data"]["from"] - fact["data"]["to"])

    def _show(self, now: float) -> None:
        """All of it each time: Ray forgets a gauge that is not set again."""
        step = self._values.get("elastrain_job_step")
        if step is not None and self._shown is None:
            self._shown = (now, step)
        elif step is not None and self._shown is not None and step > self._shown[1]:
            at, before = self._shown
            self._values["elastrain_job_step_seconds"] = (now - at) / (step - before)
            self._shown = (now, step)
        for name, value in self._values.items():
            if value is not None and math.isfinite(value):
                self._gauges[name].set(float(value))

    def _add(self, name: str, value: float) -> None:
        if value > 0:
            self._counters[name].inc(float(value))

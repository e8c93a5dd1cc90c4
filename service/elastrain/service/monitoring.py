"""What the store knows of the service, read for monitoring at each scrape: every replica says the same."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from elastrain.service.clock import Clock
from elastrain.service.errors import Unavailable
from elastrain.service.jobs import WAITING, Status
from elastrain.service.store import Store, Tx, installation, jobs, monitoring

ATTEMPT_STATES = ("submitting", "submitted", "claimed", "sweeping")


def known(store: Store, clock: Clock) -> CollectorRegistry:
    """What the store knows, as a registry."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StoreGauges(store, clock))
    return registry


class StoreGauges(Collector):
    """A scrape while the database is away says so, and keeps what this process counts."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "elastrain_build_info", "Always 1; the version is the label.", labels=["version"]
        )
        info.add_metric([version("elastrain")], 1)
        yield info
        try:
            with self._store.read() as tx:
                found = [*self._jobs(tx), *self._queue(tx), *self._attempts(tx), *self._reconciler(tx)]
                found += self._cluster(tx)
        except Unavailable:
            found = []
        yield GaugeMetricFamily("elastrain_store_up", "1 if the database answered.", value=bool(found))
        yield from found

    def _jobs(self, tx: Tx) -> Iterator[Metric]:
        by_status = GaugeMetricFamily("elastrain_jobs", "Jobs by status.", labels=["status"])
        for status, count in ({s.value: 0 for s in Status} | jobs.counts(tx)).items():
            by_status.add_metric([status], count)
        yield by_status
        granted, training = monitoring.workers(tx)
        yield GaugeMetricFamily("elastrain_workers_granted", "Workers that jobs may have.", value=granted)
        yield GaugeMetricFamily("elastrain_workers_active", "Workers that train.", value=training)

    def _queue(self, tx: Tx) -> Iterator[Metric]:
        by_reason = GaugeMetricFamily("elastrain_queue_jobs", "Queued jobs by reason.", labels=["reason"])
        queued = {item.reason: item for item in monitoring.queued(tx)}
        for reason in sorted({*WAITING, *queued}):
            by_reason.add_metric([str(reason)], queued[reason].jobs if reason in queued else 0)
        yield by_reason
        now = self._clock.now()
        oldest = max((now - item.since for item in queued.values()), default=0.0)
        yield GaugeMetricFamily(
            "elastrain_queue_oldest_wait_seconds",
            "How long the oldest queued job waits.",
            value=max(0.0, oldest),
        )

    def _attempts(self, tx: Tx) -> Iterator[Metric]:
        by_state = GaugeMetricFamily("elastrain_attempts", "Attempts not ended, by state.", labels=["state"])
        for state, count in (dict.fromkeys(ATTEMPT_STATES, 0) | monitoring.open_attempts(tx)).items():
            by_state.add_metric([state], count)
        yield by_state

    def _reconciler(self, tx: Tx) -> Iterator[Metric]:
        beat = installation.read(tx, "reconciler")
        if beat is not None:  # written every five seconds
            lag = GaugeMetricFamily(
                "elastrain_reconciler_lag_seconds",
                "How long ago the reconciler last noted that it had made a round.",
                value=max(0.0, self._clock.now() - beat[0]),
            )
            yield lag

    def _cluster(self, tx: Tx) -> Iterator[Metric]:
        seen = installation.read(tx, "cluster")
        if seen is None:
            return
        reachable = bool(seen[1].get("reachable"))
        yield GaugeMetricFamily("elastrain_ray_up", "1 if Ray answered in the last round.", value=reachable)
        nodes = GaugeMetricFamily("elastrain_ray_nodes", "Ray's nodes, as last seen.", labels=["state"])
        alive = sum(bool(node["alive"]) for node in seen[1]["nodes"])
        nodes.add_metric(["alive"], alive)
        nodes.add_metric(["dead"], len(seen[1]["nodes"]) - alive)
        yield nodes

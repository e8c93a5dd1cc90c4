"""The service's numbers in Prometheus' text format, read from the store at each scrape."""

from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse

from elastrain.service.control import Control


class Scrape(Collector):
    """One scrape: nothing is counted in this process, so any replica gives the same numbers."""

    def __init__(self, service: Control) -> None:
        self.service = service

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("elastrain_up", "1 while the API answers.", value=1)
        info = GaugeMetricFamily("elastrain_build", "Always 1; the version is the label.", labels=["version"])
        info.add_metric([version("elastrain")], 1)
        yield info
        jobs = GaugeMetricFamily("elastrain_jobs", "Jobs by status.", labels=["status"])
        for status, count in self.service.counts().items():
            jobs.add_metric([status], count)
        yield jobs


def exposition(service: Control) -> PlainTextResponse:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape(service))
    return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

"""The service's numbers in Prometheus' text format."""

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import PlainTextResponse


def exposition(registry: CollectorRegistry) -> PlainTextResponse:
    """The text that Prometheus reads."""
    return PlainTextResponse(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

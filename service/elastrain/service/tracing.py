"""OpenTelemetry traces of requests and reconciler rounds; off unless an endpoint is set, and then free.

On when OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is: spans are sent from a thread of
their own, and dropped if nobody takes them. All else is set by OpenTelemetry's own variables, as
OTEL_TRACES_SAMPLER=parentbased_traceidratio and OTEL_TRACES_SAMPLER_ARG=0.05, or OTEL_EXPORTER_OTLP_HEADERS.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from typing import Any, Protocol

from elastrain.service.settings import SettingsError

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
CLOSE_S = 3.0


class Span(Protocol):
    """What is done with one; OpenTelemetry's own spans have this shape."""

    def update_name(self, name: str) -> None: ...
    def set_attribute(self, key: str, value: Any) -> None: ...


class Tracing(Protocol):
    on: bool

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Span]:
        """Of what happens in the block, within the span around it."""

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Of one request, as part of the trace that its `traceparent` header names."""

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""


class _Nothing:
    def update_name(self, name: str) -> None: ...
    def set_attribute(self, key: str, value: Any) -> None: ...


class _NoTracing:
    on = False

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Span]:
        return nullcontext(_NOTHING)

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        return nullcontext(_NOTHING)

    def close(self) -> None: ...


_NOTHING = _Nothing()
NO_TRACING: Tracing = _NoTracing()


def open_tracing(env: Mapping[str, str] | None = None) -> Tracing:
    """Raises SettingsError if an endpoint is set and OpenTelemetry is not installed."""
    env = os.environ if env is None else env
    named = next((name for name in ENDPOINTS if env.get(name)), None)
    if named is None:
        return NO_TRACING
    try:
        return _OpenTelemetry()
    except ImportError as error:
        raise SettingsError(
            f"{named}={env[named]!r} asks for traces, and OpenTelemetry is not installed ({error.name}): "
            "pip install 'elastrain[tracing]', or unset it"
        ) from error


class _OpenTelemetry:
    on = True

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        logging.getLogger("opentelemetry.exporter").setLevel(logging.ERROR)  # a line for each of its tries
        known = {"service.version": version("elastrain")}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            known["service.name"] = "elastrain"
        self._provider = TracerProvider(resource=Resource.create(known), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("elastrain", version("elastrain"))
        self._propagator = TraceContextTextMapPropagator()

    def span(self, name: str, **attributes: Any) -> AbstractContextManager[Span]:
        return self._tracer.start_as_current_span(name, attributes=attributes)

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind

        around = self._propagator.extract(headers)
        with self._tracer.start_as_current_span(method, context=around, kind=SpanKind.SERVER) as span:
            span.set_attribute("http.request.method", method)
            yield span

    def close(self) -> None:
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_S)

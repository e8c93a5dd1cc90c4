"""Traces: off and free without an endpoint; with one, requests and rounds arrive there as spans."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from elastrain.service.control import Control
from elastrain.service.settings import SettingsError
from elastrain.service.tracing import NO_TRACING, Tracing, open_tracing
from serving import Live
from world import World


class Collector:
    """Takes spans as an OpenTelemetry collector does, over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            named = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(named["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def tracing(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Tracing:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    return open_tracing()


def attributes(span: Span) -> dict[str, str | int]:
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def test_without_an_endpoint_nothing_of_it_is_even_imported() -> None:
    program = """
import sys
from elastrain.service.tracing import NO_TRACING, open_tracing
import elastrain.api.app
assert open_tracing({}) is NO_TRACING
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk")]
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_endpoint_without_opentelemetry_stops_the_start_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(
        SettingsError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT='http://c:4318'.*elastrain\[tracing\]"
    ):
        open_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})


def test_a_request_is_a_span_of_its_callers_trace_named_by_its_route(
    control: Control, tracing: Tracing, collector: Collector, token: str
) -> None:
    control.tracing = tracing
    live = Live(control)
    trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"Authorization": f"Bearer {token}", "traceparent": f"00-{trace}-{caller}-01"}
    with httpx.Client(base_url=live.url, headers=headers, trust_env=False) as http:
        assert http.get("/v1/jobs/j-nobody").status_code == 404
        assert http.get("/healthz").status_code == 200
        assert http.get("/metrics").status_code == 200
    live.stop()
    tracing.close()
    (span,) = collector.spans
    assert span.name == "GET /v1/jobs/{job}"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (trace, caller)
    assert span.kind == Span.SPAN_KIND_SERVER
    assert attributes(span)["http.response.status_code"] == 404
    assert collector.services == {"elastrain"}


def test_a_round_is_a_span_with_what_it_did_to_which_job(
    tmp_path: Path, tracing: Tracing, collector: Collector
) -> None:
    world = World(tmp_path)
    world.reconciler._tracing = tracing
    id = world.submit()
    world.round()
    world.store.close()
    tracing.close()
    spans = {span.name: span for span in collector.spans}
    whole = spans["reconciler round"]
    assert {"look at Ray", "place jobs", "open", "submit"} < spans.keys()
    assert {s.parent_span_id for name, s in spans.items() if name != whole.name} == {whole.span_id}
    assert attributes(spans["submit"])["job"] == id


def test_a_collector_that_is_away_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    world = World(tmp_path)
    world.reconciler._tracing = open_tracing()
    id = world.submit()
    world.round()
    assert world.status(id) == "starting"
    world.store.close()
    assert not NO_TRACING.on

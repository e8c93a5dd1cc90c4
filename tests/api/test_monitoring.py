"""/metrics over HTTP: requests by route, problems by code, and no label that somebody could make grow."""

import secrets

import httpx
from prometheus_client.parser import text_string_to_metric_families

from serving import SPEC, Life

Labels = dict[str, str]


def scraped(http: httpx.Client) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """{name of a sample: {its labels: value}}"""
    reply = http.get("/metrics").raise_for_status()
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(found: dict[str, dict[tuple[tuple[str, str], ...], float]], name: str, **labels: str) -> float:
    return found[name].get(tuple(sorted(labels.items())), 0.0)


def test_a_request_counts_under_its_route_and_not_under_its_path(http: httpx.Client, life: Life) -> None:
    for _ in range(3):
        http.get(f"/v1/jobs/{life.job}")
    http.get("/v1/jobs/j-nobody/events")
    found = scraped(http)
    requests = "elastrain_http_requests_total"
    assert value(found, requests, method="GET", route="/v1/jobs/{job}", status="200") == 3
    assert value(found, requests, method="GET", route="/v1/jobs/{job}/events", status="404") == 1
    timed = value(
        found, "elastrain_http_request_duration_seconds_count", method="GET", route="/v1/jobs/{job}"
    )
    assert timed == 3
    assert life.job not in http.get("/metrics").text


def test_paths_and_methods_that_nobody_knows_make_one_series(http: httpx.Client) -> None:
    for _ in range(20):
        http.get(f"/{secrets.token_hex(8)}")
        http.request(secrets.token_hex(4).upper(), "/v1/jobs")
    series = scraped(http)["elastrain_http_requests_total"]
    unknown = [dict(labels) for labels in series if dict(labels)["route"] == "(none)"]
    assert {"method": "GET", "route": "(none)", "status": "404"} in unknown
    assert len(series) < 8, series


def test_what_is_refused_or_breaks_counts_by_its_code(http: httpx.Client, life: Life) -> None:
    http.post("/v1/jobs", json={**SPEC, "sede": 1})
    http.get("/v1/jobs", headers={"Authorization": "Bearer elt_wrong"})
    http.get("/v1/jobs/j-nobody")
    http.post("/v1/jobs", content=b"{", headers={"Content-Type": "application/json"})
    life.control._listings = None  # type: ignore[assignment]
    assert http.get("/v1/cluster", headers={"Connection": "close"}).status_code == 500
    found = scraped(http)["elastrain_http_problems_total"]
    assert {dict(labels)["code"]: count for labels, count in found.items()} == {
        "invalid": 1,
        "unauthenticated": 1,
        "not_found": 1,
        "bad_json": 1,
        "internal": 1,
    }


def test_a_stream_counts_when_it_begins_to_answer_and_not_when_it_ends(
    http: httpx.Client, life: Life
) -> None:
    life.runs()
    with http.stream("GET", f"/v1/jobs/{life.job}/events", headers={"Accept": "text/event-stream"}) as stream:
        next(stream.iter_lines())
        found = scraped(http)
        assert value(
            found,
            "elastrain_http_requests_total",
            method="GET",
            route="/v1/jobs/{job}/events",
            status="200",
        )


def test_names_and_units_are_as_prometheus_has_them(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    families = list(text_string_to_metric_families(text))
    assert len(families) >= 25
    for family in families:
        name = family.name
        assert name.startswith("elastrain_") and family.documentation.endswith("."), name
        assert not any(unit in name for unit in ("_ms", "milliseconds", "_mb", "percent")), name
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples), name
        else:
            assert not name.endswith("_total"), name
        if family.type == "histogram":
            assert name.endswith("_seconds"), name
        labels = {label for sample in family.samples for label in sample.labels}
        assert not labels & {"job", "instance", "id", "path", "user", "token", "worker"}, name
    assert "_created" not in text

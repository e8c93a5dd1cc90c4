"""Errors: problem details with a pointer to each fault, and never a traceback."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from elastrain.service import logs
from elastrain.service.control import Control
from elastrain.trainers.storage import StorageError
from serving import SPEC, Life, Live


def problem(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = reply.json()
    assert body["status"] == status
    assert body["code"] == code
    assert body["title"] and body["detail"] and "Traceback" not in reply.text
    return body


def test_every_wrong_field_of_a_spec_is_pointed_at_at_once(http: httpx.Client) -> None:
    wrong = {**SPEC, "batchsize": 3, "batch": {"size": 64, "microbatch": 48}, "seed": "one"}
    body = problem(http.post("/v1/jobs", json=wrong), 422, "invalid")
    pointers = {error["pointer"] for error in body["errors"]}
    assert {"/batchsize", "/batch/microbatch", "/seed"} <= pointers


def test_a_body_that_is_not_json_is_told_so(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    problem(http.post("/v1/jobs", content=b'{"name": ', headers=headers), 400, "bad_json")


def test_a_spec_sent_as_yaml_is_told_what_to_send(http: httpx.Client) -> None:
    body = problem(http.post("/v1/jobs", content=b"name: x"), 422, "invalid")
    assert "application/json" in body["detail"] and body["hint"] == "Send one JSON object."


def test_a_query_out_of_range_is_pointed_at(http: httpx.Client) -> None:
    body = problem(http.get("/v1/jobs?limit=0"), 422, "invalid")
    assert body["errors"][0]["pointer"] == "/query/limit"


def test_an_unknown_job_path_and_method_are_problems_too(http: httpx.Client) -> None:
    problem(http.get("/v1/jobs/j-nothere"), 404, "not_found")
    problem(http.get("/v1/nothere"), 404, "not_found")
    reply = http.delete("/v1/jobs")
    problem(reply, 405, "method_not_allowed")
    assert "GET" in reply.headers["allow"] or "POST" in reply.headers["allow"]


def test_a_change_of_an_ended_job_is_a_conflict_that_lists_what_is_possible(
    http: httpx.Client, life: Life
) -> None:
    life.runs()
    life.succeeds()
    body = problem(http.post(f"/v1/jobs/{life.job}/cancel"), 409, "conflict")
    assert body["allowed_actions"] == ["clone", "delete"]
    assert http.get(f"/v1/jobs/{life.job}").json()["status"] == "succeeded"


def test_a_fault_of_ours_gives_a_number_and_no_traceback(
    http: httpx.Client, control: Control, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def burst(**_: object) -> None:
        raise ZeroDivisionError("secret of the house")

    monkeypatch.setattr(control, "queue", burst)
    reply = http.get("/v1/queue")
    body = problem(reply, 500, "internal")
    assert "secret" not in reply.text
    assert body["fault"] in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_body_too_large_is_refused_with_both_numbers(http: httpx.Client) -> None:
    reply = http.post("/v1/jobs", content=b"x" * (17 * 2**20), headers={"Content-Type": "application/json"})
    body = problem(reply, 413, "too_large")
    assert (body["size"], body["limit"]) == (17 * 2**20, 16 * 2**20)
    chunked = (b" " * 2**20 for _ in range(17))
    reply = http.post("/v1/jobs", content=chunked, headers={"Content-Type": "application/json"})
    assert problem(reply, 413, "too_large")["limit"] == 16 * 2**20


@pytest.mark.parametrize(
    "path",
    [
        "/events?after={huge}",
        "/metrics?from_step={huge}",
        "/metrics?after={huge}",
        "/logs?worker=w0&offset={huge}",
        "/logs?attempt={huge}",
        "/logs?cursor={huge}",
        "/logs?cursor=%C2%B2",
        "/workers?attempt={huge}",
        "/generations?cursor={huge}_1",
        "/feed?after={huge}",
    ],
)
def test_a_number_beyond_all_bounds_is_refused(http: httpx.Client, life: Life, path: str) -> None:
    life.runs()
    life.prints("w0", b"hello\n")
    reply = http.get(f"/v1/jobs/{life.job}{path.format(huge=10**40)}")
    problem(reply, 422, "invalid")
    stream = {"Accept": "text/event-stream", "Last-Event-ID": str(10**40)}
    problem(http.get(f"/v1/jobs/{life.job}/events", headers=stream), 422, "invalid")


@pytest.mark.parametrize("depth", [100, 500, 900, 1_500, 100_000])
def test_a_body_of_any_depth_is_refused_and_no_fault(http: httpx.Client, life: Life, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    headers = {"Content-Type": "application/json"}
    bodies = {
        "/v1/jobs": f'{{"name": "x", "task": "a:B", "steps": 1, "task_args": {{"x": {deep}}}}}',
        "/v1/jobs?dry_run=true": f'{{"x": {deep}}}',
        f"/v1/jobs/{life.job}/clone": f'{{"env": {deep}}}',
        "/v1/projects": f'{{"name": {deep}}}',
        "/v1/driver/claim": f'{{"protocol": {deep}}}',
    }
    for path, body in bodies.items():
        reply = http.post(path, content=body.encode(), headers=headers)
        assert 400 <= reply.status_code < 500, (path, reply.text[:300])
        assert reply.headers["content-type"] == "application/problem+json"
    reply = http.patch(f"/v1/jobs/{life.job}", content=f'{{"labels": {deep}}}'.encode(), headers=headers)
    assert 400 <= reply.status_code < 500


def test_a_log_whose_storage_is_away_is_503_in_every_form_and_no_fault(
    http: httpx.Client, life: Life, control: Control, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    life.runs()
    life.prints("w0", b"hello\n")

    def away(*_: object) -> bytes:
        raise StorageError("unavailable", "'jobs/x' in s3://bucket could not be reached: 503 Slow Down")

    monkeypatch.setattr(control._logs._segments._storage, "get", away)
    assert isinstance(control._logs._segments, logs._Segments)
    path = f"/v1/jobs/{life.job}/logs"
    for asked in (path, f"{path}?worker=w0", f"{path}?tail=5"):
        problem(http.get(asked), 503, "unavailable")
    problem(http.get(f"{path}?worker=w0", headers={"Accept": "text/plain"}), 503, "unavailable")
    stream = http.get(path, headers={"Accept": "text/event-stream"})  # it breaks off, and is asked for again
    assert "event: end" not in stream.text
    assert "Traceback" not in caplog.text


def test_the_process_is_alive_although_all_its_threads_wait_for_the_database(
    live: Live, http: httpx.Client, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubelet asks: a restart would only make it worse."""
    waiting, over = threading.Semaphore(0), threading.Event()

    def never(**_: object) -> dict[str, object]:
        waiting.release()
        over.wait(60)
        return {"items": [], "next_cursor": None}

    monkeypatch.setattr(control, "queue", never)
    http.get("/v1/me")  # the token is believed from here on
    with ThreadPoolExecutor(60) as callers:
        asked = [callers.submit(http.get, "/v1/queue") for _ in range(60)]
        for _ in range(40):  # as many as there are threads
            assert waiting.acquire(timeout=60)
        try:
            assert httpx.get(f"{live.url}/healthz", trust_env=False, timeout=20).json() == {"ok": True}
        finally:
            over.set()
        assert {reply.result().status_code for reply in asked} <= {200, 401}

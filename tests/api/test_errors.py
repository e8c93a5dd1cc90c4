"""Errors: problem details with a pointer to each fault, and never a traceback."""

from typing import Any

import httpx
import pytest

from elastrain.service.control import Control
from serving import SPEC, Life


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

"""The door: every route is closed unless it is on a short list, and errors never tell what is inside."""

import asyncio
import re
import socket
from typing import Any

import httpx
import pytest

from elastrain.api.app import create_app
from elastrain.api.door import CLAIM, OPEN
from elastrain.service.control import Control
from serving import SPEC, Life, Live, token_of

PROBES = {"job": "j-0", "project": "vision", "step": "1", "file": "model.safetensors", "sha256": "0" * 64}


def routes(http: httpx.Client) -> list[tuple[str, str]]:
    paths = http.get("/openapi.json").json()["paths"]
    fill = [(re.sub(r"\{(\w+)\}", lambda name: PROBES[name[1]], path), ways) for path, ways in paths.items()]
    return [(way.upper(), path) for path, ways in fill for way in ways]


def test_every_route_is_closed_without_a_token_and_with_a_wrong_one(live: Live, http: httpx.Client) -> None:
    found = routes(http)
    assert len(found) > 20
    for method, path in found:
        for headers in (
            {"Authorization": ""},
            {"Authorization": "Bearer elt_wrong"},
            {"Authorization": "Basic YTpi"},
        ):
            reply = http.request(method, path, headers=headers)
            if (method, path) in OPEN:
                assert reply.status_code in (200, 503)
            elif (method, path) == CLAIM:
                assert reply.status_code == 422, (method, path, reply.text)
            else:
                assert reply.status_code == 401, (method, path)
                assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path", ["/v1/jobs/", "//v1/jobs", "/V1/JOBS", "/v1//jobs", "/docs", "/openapi.json", "/x"]
)
def test_no_spelling_of_a_path_is_a_way_in(live: Live, path: str) -> None:
    with httpx.Client(base_url=live.url, trust_env=False) as nobody:
        for method in ("GET", "HEAD", "DELETE", "POST", "OPTIONS", "TRACE"):
            assert nobody.request(method, live.url + path).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/{job}/checkpoints/1/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/jobs/{job}/checkpoints/1/%252e%252e%252fpasswd",
        "/v1/jobs/{job}/checkpoints/1/manifest.json%00",
        "/v1/jobs/..%2f..%2fetc/logs",
        "/v1/jobs/{job}/logs?worker=../../../../etc/passwd",
        "/v1/jobs/{job}/logs?worker=%2Fetc%2Fpasswd",
        "/v1/jobs/{job}/logs?worker=*",
        "/v1/packages/..%2f..%2fetc%2fpasswd",
    ],
)
def test_no_parameter_reads_a_file_that_is_not_the_jobs(http: httpx.Client, life: Life, path: str) -> None:
    reply = http.get(path.format(job=life.job))
    assert 400 <= reply.status_code < 500
    assert "root:" not in reply.text


def test_what_another_project_owns_does_not_exist(http: httpx.Client, live: Live, life: Life) -> None:
    life.runs()
    life.saves(1, model_safetensors=b"weights")
    life.prints("w0", b"secret")
    stranger = {"Authorization": f"Bearer {token_of(live.control, 'member', 'elsewhere')}"}
    for method, path in routes(http):
        if PROBES["job"] in path:
            own = path.replace(PROBES["job"], life.job)
            reply = http.request(
                method, own, headers=stranger, json={"priority": 1} if method == "PATCH" else None
            )
            assert reply.status_code == 404, (method, own, reply.text)
    for path in ("/v1/jobs", "/v1/queue", "/v1/jobs?project=default"):
        assert http.get(path, headers=stranger).json()["items"] == []
    assert http.post("/v1/jobs", json=SPEC, headers=stranger).status_code == 403
    assert http.get(f"/v1/jobs/{life.job}").json()["status"] == "running"


def test_a_viewer_reads_and_changes_nothing(http: httpx.Client, live: Live, life: Life) -> None:
    viewer = {"Authorization": f"Bearer {token_of(live.control, 'viewer', 'default')}"}
    path = f"/v1/jobs/{life.job}"
    assert http.get(path, headers=viewer).status_code == 200
    for reply in (
        http.post("/v1/jobs", json=SPEC, headers=viewer),
        http.post(f"{path}/cancel", headers=viewer),
        http.patch(path, json={"priority": 5}, headers=viewer),
        http.put(f"/v1/packages/{'0' * 64}", content=b"zip", headers=viewer),
    ):
        assert (reply.status_code, reply.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize(
    "where",
    [
        *("storage_url", "storage", "data", "dataset", "driver_url"),  # fields that there are not
        *("code", "resume_from", "image", "task"),  # and some that name something else
    ],
)
@pytest.mark.parametrize("address", ["http://127.0.0.1:{port}/", "file:///etc/passwd", "//127.0.0.1:{port}"])
def test_no_address_in_a_spec_is_taken_and_nothing_calls_it(
    http: httpx.Client, where: str, address: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.setblocking(False)
        spec = {**SPEC, where: address.format(port=canary.getsockname()[1])}
        for reply in (http.post("/v1/jobs", json=spec), http.post("/v1/jobs?dry_run=true", json=spec)):
            assert 400 <= reply.status_code < 500 and "root:" not in reply.text
        with pytest.raises(BlockingIOError):
            canary.accept()


def test_the_landing_page_and_health_are_open_and_name_nobody(live: Live) -> None:
    for path in ("/", "/healthz", "/readyz"):
        reply = httpx.get(live.url + path, trust_env=False)
        assert reply.status_code in (200, 503)
        assert "127.0.0.1" not in reply.text


def test_nobody_has_a_large_body_read_before_he_has_shown_who_he_is(live: Live) -> None:
    large = b'{"protocol": "' + b"x" * 100_000 + b'"}'
    for content in (large, iter([large[:50_000], large[50_000:]])):
        headers = {"Content-Type": "application/json"}
        reply = httpx.post(f"{live.url}/v1/driver/claim", content=content, headers=headers, trust_env=False)
        assert (reply.status_code, reply.json()["limit"]) == (413, 65_536)
    for path in ("/v1/jobs", "/v1/driver/facts"):
        for headers in ({}, {"Authorization": "Bearer eld_wrong"}):
            reply = httpx.post(f"{live.url}{path}", content=b"{" + large, headers=headers, trust_env=False)
            assert reply.status_code == 401, "and not 400, which it would be if somebody had read it"


def test_no_byte_of_a_body_is_read_of_somebody_who_has_shown_no_token(control: Control) -> None:
    """Asked of the application itself, since a client cannot see what the server left unread."""
    read, sent = [], []

    async def receive() -> Any:
        read.append(1)
        return {"type": "http.request", "body": b"{", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    for path in ("/v1/jobs", "/v1/jobs/cancel", "/v1/projects", "/v1/driver/facts", "/v1/nothing"):
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
        sent.clear()
        asyncio.run(create_app(control)(scope, receive, send))
        assert (sent[0]["status"], read) == (401, []), path

"""Following a job: everything once and in order, whatever happens to the line, then how it ended."""

import json
import threading
import time
from typing import Any

import httpx
import pytest

from elastrain.api import sse
from elastrain.client import Client
from elastrain.service.store import jobs
from serving import Life, Live

STREAM = {"Accept": "text/event-stream"}


def frames(text: str) -> list[dict[str, Any]]:
    """Server-Sent Events as {event, id, data}."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append({**fields, "id": int(fields["id"]), "data": json.loads(fields["data"])})
    return found


def test_an_ended_jobs_stream_tells_all_of_it_and_ends_with_its_status(
    http: httpx.Client, life: Life
) -> None:
    life.runs()
    life.event("worker.joined", "w0 joined", worker="w0")
    life.step(1, loss=0.5)
    life.fails("Traceback: ...\nNameError: x")
    heard = frames(http.get(f"/v1/jobs/{life.job}/events", headers=STREAM).text)
    assert [frame["event"] for frame in heard] == ["event"] * (len(heard) - 1) + ["end"]
    assert [frame["id"] for frame in heard[:-1]] == sorted({frame["id"] for frame in heard[:-1]})
    assert [frame["data"]["type"] for frame in heard[:-1]] == [
        "job.queued",
        "job.starting",
        "job.running",
        "worker.joined",
        "job.failed",
    ]
    end = heard[-1]["data"]
    assert (end["status"], end["failed_by"], end["reason"]) == ("failed", "user", "user_error")
    metrics = frames(http.get(f"/v1/jobs/{life.job}/metrics", headers=STREAM).text)
    assert [frame["event"] for frame in metrics] == ["metric", "end"]
    assert metrics[0]["data"]["values"] == {"loss": 0.5}


@pytest.mark.parametrize("way", ["header", "query"])
def test_a_stream_goes_on_after_the_position_that_the_client_has(
    http: httpx.Client, life: Life, way: str
) -> None:
    life.runs()
    for step in range(5):
        life.step(step, loss=1.0)
    life.succeeds()
    whole = frames(http.get(f"/v1/jobs/{life.job}/feed", headers=STREAM).text)
    known = whole[3]["id"]
    headers = {**STREAM, "Last-Event-ID": str(known)} if way == "header" else STREAM
    rest = frames(http.get(f"/v1/jobs/{life.job}/feed?after={known}", headers=headers).text)
    assert rest == whole[4:]


def test_a_stream_of_an_unknown_job_is_a_problem_and_no_stream(http: httpx.Client) -> None:
    reply = http.get("/v1/jobs/j-none/events", headers=STREAM)
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/problem+json"


def test_a_bad_last_event_id_is_pointed_at(http: httpx.Client, life: Life) -> None:
    reply = http.get(f"/v1/jobs/{life.job}/events", headers={**STREAM, "Last-Event-ID": "abc"})
    assert reply.status_code == 422
    assert reply.json()["errors"][0]["pointer"].startswith("/header/last")


def test_a_silent_job_is_told_from_a_dead_line(
    http: httpx.Client, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(sse, "POLL_S", 0.1)
    with http.stream("GET", f"/v1/jobs/{life.job}/metrics", headers=STREAM) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.headers["cache-control"] == "no-store"
        lines = reply.iter_lines()
        while next(lines) != ": heartbeat":
            pass


def test_news_arrives_at_once(http: httpx.Client, life: Life) -> None:
    life.runs()
    with http.stream("GET", f"/v1/jobs/{life.job}/metrics", headers=STREAM) as reply:
        lines = reply.iter_lines()
        next(lines)
        said = time.monotonic()
        life.step(1, loss=0.5)
        while not next(lines).startswith("data"):
            pass
        assert time.monotonic() - said < 0.5


def test_a_follower_misses_and_repeats_nothing_when_the_service_restarts(
    live: Live, client: Client, life: Life
) -> None:
    life.runs()
    heard: list[str] = []

    def listen() -> None:
        for update in client.job(life.job).logs("w0", patience_s=20):
            heard.append(update.data.get("text") or update.data["status"])

    listener = threading.Thread(target=listen)
    listener.start()
    for number in range(1, 61):
        life.prints("w0", f"{number}\n".encode())
        if number in (20, 40):
            live.stop()
            life.prints("w1", b"not asked for\n")
            live.start()
    life.succeeds()
    listener.join(timeout=30)
    assert "".join(heard) == "".join(f"{number}\n" for number in range(1, 61)) + "succeeded"


def test_logs_come_as_lines_as_raw_bytes_and_as_a_tail(http: httpx.Client, life: Life) -> None:
    life.runs()
    raw = (
        b"one\n\xff\xfe two\n"
        + "drei 😀\n".encode()
        + b"\x00 cr\rcr\n\x1b[31mred\x1b[0m\n"
        + b"y" * 10**6
        + b"\nafter\n"
    )
    life.prints("w0", raw[:9])
    life.prints("w0", raw[9:20])
    life.prints("w0", raw[20:])
    path = f"/v1/jobs/{life.job}/logs"
    plain = http.get(path, params={"worker": "w0"}, headers={"Accept": "text/plain"})
    assert plain.content == raw
    assert plain.headers["content-type"] == "text/plain"
    assert http.get(path, headers={"Accept": "text/plain"}).status_code == 422
    tail = http.get(path, params={"worker": "w0", "tail": 1}).json()
    assert [line["text"] for line in tail["items"]] == ["after\n"]
    life.succeeds()
    followed = frames(http.get(path, params={"worker": "w0"}, headers=STREAM).text)
    text = "".join(frame["data"]["text"] for frame in followed[:-1])
    assert text.endswith("\nafter\n") and "drei 😀" in text


def test_joined_pages_of_a_few_bytes_are_the_whole_log(http: httpx.Client, life: Life) -> None:
    life.runs()
    text = "eins\nzwei 😀 drei\n" * 5
    life.prints("w0", text.encode())
    offset, joined = 0, ""
    while True:
        page = http.get(
            f"/v1/jobs/{life.job}/logs", params={"worker": "w0", "offset": offset, "limit": 7}
        ).json()
        joined += "".join(item["text"] for item in page["items"])
        if page["next_offset"] is None or page["next_offset"] == offset:
            break
        offset = page["next_offset"]
    assert joined.replace("\n", "") == text.replace("\n", "")


def test_a_job_that_is_deleted_while_it_is_followed_ends_the_stream_quietly(
    http: httpx.Client, life: Life, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.runs()
    heard = []
    with http.stream("GET", f"/v1/jobs/{life.job}/feed", headers=STREAM) as stream:
        for line in stream.iter_lines():
            heard.append(line)
            if "job.running" in line:
                with life.control.store.write() as tx:  # as `delete` does once it has ended
                    jobs.change(tx, life.job, deleted_at=1.0)
                life.control.changes.tell(life.job)
    assert "event: end" not in heard and "Traceback" not in caplog.text
    assert http.get(f"/v1/jobs/{life.job}/feed", headers=STREAM).status_code == 404

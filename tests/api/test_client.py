"""The Python client against a real service."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from elastrain.client import (
    Client,
    Conflict,
    FixRequest,
    Job,
    JobFailed,
    NotAllowed,
    NotFound,
    TimedOut,
    Unreachable,
)
from elastrain.service.jobs import Reason, Status
from elastrain.service.store import jobs
from serving import SPEC, Life, Live


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(SPEC))
    return path


def test_a_spec_file_with_overrides_becomes_a_job(client: Client, spec_file: Path) -> None:
    job = client.submit(spec_file, overrides=["optimizer.lr=1e-2", "workers.max=2", "labels.team=vision"])
    assert job.data["spec"]["optimizer"]["lr"] == 0.01
    assert job.data["spec"]["workers"]["max"] == 2
    assert job.data["spec"]["labels"] == {"team": "vision"}
    assert [found.id for found in client.jobs()] == [job.id]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: 2024-01-01", "name: 2024-01-01 is read as a date; if it is meant as text, put it in quotes"),
        ("optimizer: {name: adam, lr: .inf}", "optimizer.lr: must be a finite number, got inf"),
        ("labels: &labels {more: *labels}", "labels.more: holds itself"),
        ("labels: {2024-01-01: x}", "labels: the name 2024-01-01 is read as a date: put it in quotes"),
        (f"labels: {'[' * 3000}", "nested too deeply"),
    ],
)
def test_what_yaml_knows_and_json_does_not_is_refused_by_field(
    client: Client, tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(FixRequest) as caught:
        client.submit(path)
    assert told in caught.value.detail


def test_code_is_uploaded_once_and_named_in_the_spec(client: Client, tmp_path: Path, spec_file: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "my_task.py").write_text("x = 1\n")
    job = client.submit(spec_file, working_dir=code)
    digest = job.data["spec"]["code"]
    assert len(digest) == 64
    puts: list[str] = []
    send = client.http.send

    def watched(method: str, path: str, **request: object) -> object:
        puts.append(method)
        return send(method, path, **request)  # type: ignore[arg-type]

    client.http.send = watched  # type: ignore[method-assign, assignment]
    assert client.submit(spec_file, working_dir=code).data["spec"]["code"] == digest
    assert "PUT" not in puts


def test_a_package_whose_bytes_are_not_its_name_is_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises((FixRequest, Conflict)):
        client.http.send("PUT", f"/v1/packages/{'0' * 64}", body=lambda: b"not a zip")
    with pytest.raises(NotFound):
        client.http.send("HEAD", f"/v1/packages/{'0' * 64}")


def test_errors_are_named_by_the_next_move(live: Live, client: Client, life: Life, token: str) -> None:
    with pytest.raises(FixRequest) as caught:
        client.submit({**SPEC, "batch": {"size": 64, "microbatch": 48}})
    assert caught.value.errors[0]["pointer"] == "/batch/microbatch"
    with pytest.raises(NotFound):
        client.job("j-none")
    with pytest.raises(NotAllowed):
        Client(live.url, "elt_wrong").job(life.job)
    life.runs()
    life.succeeds()
    with pytest.raises(Conflict) as late:
        client.job(life.job).cancel()
    assert late.value.allowed_actions == ["clone", "delete"]


def test_every_post_has_a_key_and_all_its_tries_have_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastrain.client.http.PAUSES_S", (0.0, 0.0))
    seen: list[str] = []

    def lost(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["idempotency-key"])
        if len(seen) % 3:
            raise httpx.ReadTimeout("the answer was lost")
        return httpx.Response(202, json={"id": "j-1", "status": "paused"})

    client = Client("http://127.0.0.1:9", "t", transport=httpx.MockTransport(lost))
    for _ in range(2):
        assert Job(client.http, {"id": "j-1", "status": "running"}).pause().status == "paused"
    assert len(seen) == 6 and [seen.count(key) for key in dict.fromkeys(seen)] == [3, 3]


def test_a_checkpoint_that_was_asked_for_is_waited_for_until_it_is_saved(client: Client, life: Life) -> None:
    life.runs()
    job = client.job(life.job)
    with pytest.raises(TimedOut, match="request 1"):
        job.checkpoint_now(timeout_s=0)

    def acknowledge() -> None:
        life.move(Status.RUNNING, Reason.TRAINING, checkpoint_done=2)

    threading.Timer(0.1, acknowledge).start()
    assert job.checkpoint_now(timeout_s=30).data["checkpoint_requests"] == {"asked": 2, "done": 2}
    threading.Timer(0.1, life.succeeds).start()
    with pytest.raises(Conflict, match="succeeded"):
        job.checkpoint_now(timeout_s=30)


def test_a_service_that_is_not_there_is_unreachable_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastrain.client.http.PAUSES_S", (0.0,))
    with pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9.*elastrain up"):
        Client("http://127.0.0.1:9", "t").version()


def test_waiting_ends_with_the_job_its_failure_or_the_time(client: Client, life: Life) -> None:
    job = client.job(life.job)
    with pytest.raises(TimedOut, match="still queued"):
        job.wait(timeout_s=0)
    life.runs()
    threading.Timer(0.2, life.succeeds).start()
    assert job.wait(timeout_s=30).status == "succeeded"


def test_waiting_outlasts_a_restart_of_the_service(
    live: Live, client: Client, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastrain.client.http.PAUSES_S", (0.0,))
    life.runs()
    ended: list[str] = []
    waiter = threading.Thread(target=lambda: ended.append(client.job(life.job).wait().status))
    waiter.start()
    live.stop()
    life.succeeds()
    time.sleep(1.2)
    live.start()
    waiter.join(timeout=30)
    assert ended == ["succeeded"]


def test_waiting_for_a_job_that_fails_raises_with_its_message(client: Client, life: Life) -> None:
    life.runs()
    life.fails("NameError: x")
    with pytest.raises(JobFailed, match="NameError: x"):
        client.job(life.job).wait()


def test_following_yields_events_and_metrics_up_to_the_end(client: Client, life: Life) -> None:
    life.runs()
    life.step(1, loss=0.5)
    life.succeeds()
    updates = list(client.job(life.job).follow())
    assert [update.kind for update in updates[-3:]] == ["metric", "event", "end"]


def test_a_checkpoint_loads_as_tensors(client: Client, life: Life) -> None:
    import torch
    from safetensors.torch import save

    weights = {"w": torch.arange(3.0)}
    life.saves(10, model_safetensors=b"old")
    life.saves(20, model_safetensors=save(weights), manifest_json=b"{}")
    job = client.job(life.job)
    assert [checkpoint.step for checkpoint in job.checkpoints()] == [10, 20]
    assert torch.equal(job.checkpoint().load()["w"], weights["w"])
    with pytest.raises(NotFound, match="saved steps: 10, 20"):
        job.checkpoint(15)


def test_a_download_that_is_not_what_was_saved_is_named_and_not_kept(
    client: Client, life: Life, tmp_path: Path
) -> None:
    life.saves(10, model_safetensors=b"weights")
    checkpoint = client.job(life.job).checkpoint()
    checkpoint.data["files"][0]["sha256"] = "0" * 64
    with pytest.raises(Exception, match="damaged"):
        checkpoint.download(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_checkpoint_cannot_write_outside_the_folder(client: Client, life: Life, tmp_path: Path) -> None:
    life.saves(10, model_safetensors=b"weights")
    checkpoint = client.job(life.job).checkpoint()
    checkpoint.data["files"][0]["name"] = "../evil"
    with pytest.raises(Exception, match=r"\.\./evil"):
        checkpoint.download(tmp_path / "out")


def test_home_gives_the_address_and_its_token_only_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastrain.client.home import discover

    for name in ("ELASTRAIN_URL", "ELASTRAIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ELASTRAIN_HOME", str(tmp_path))
    with pytest.raises(Unreachable, match="elastrain up"):
        discover()
    (tmp_path / "token").write_text("elt_local\n")
    (tmp_path / "ports.json").write_text(json.dumps({"service": 8471}))
    assert discover().url == "http://127.0.0.1:8471"
    (tmp_path / "server.json").write_text(json.dumps({"url": "http://127.0.0.1:8472"}))
    assert (discover().url, discover().token) == ("http://127.0.0.1:8472", "elt_local")
    with pytest.raises(NotAllowed, match="ELASTRAIN_TOKEN"):
        discover("https://elsewhere.example")


def test_a_token_does_not_travel_in_plain_sight_unless_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from elastrain.client.home import discover

    monkeypatch.delenv("ELASTRAIN_ALLOW_PLAINTEXT", raising=False)
    for safe in ("https://elsewhere.example", "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        discover(safe, "t")
    with pytest.raises(NotAllowed, match="ELASTRAIN_ALLOW_PLAINTEXT"):
        discover("http://elsewhere.example", "t")
    monkeypatch.setenv("ELASTRAIN_ALLOW_PLAINTEXT", "1")
    assert discover("http://elsewhere.example", "t").url == "http://elsewhere.example"


def test_a_service_that_takes_calls_and_never_answers_holds_nobody_longer_than_he_wants_to_wait(
    life: Life, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def hangs(request: httpx.Request) -> httpx.Response:
        asked.append(request.extensions["timeout"]["read"])
        raise httpx.ReadTimeout("", request=request)

    with Client("http://127.0.0.1:9", token, transport=httpx.MockTransport(hangs)) as client:
        monkeypatch.setattr("elastrain.client.http.PAUSES_S", (0.0, 0.0, 100.0))
        with pytest.raises(Unreachable):
            client.job("j-0123456789", within_s=7.0)
        assert asked == [7.0] * 3, "a pause of 100 s would have been too long"
        job = Job(client.http, client_data(life))
        with pytest.raises(TimedOut):
            job.wait(timeout_s=0.0)


def client_data(life: Life) -> dict[str, Any]:
    with life.control.store.read() as tx:
        return life.control._views.one(tx, jobs.get(tx, life.job))


def test_a_deletion_whose_answer_was_lost_is_done_and_not_an_error(
    life: Life, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = 0

    def loses(request: httpx.Request) -> httpx.Response:
        nonlocal heard
        heard += 1
        if heard == 1:
            raise httpx.ReadError("cut", request=request)
        return httpx.Response(404, json={"detail": "There is no such job"})

    monkeypatch.setattr("elastrain.client.http.PAUSES_S", (0.0,))
    with Client("http://127.0.0.1:9", token, transport=httpx.MockTransport(loses)) as client:
        Job(client.http, client_data(life)).delete()
        with pytest.raises(NotFound):
            Job(client.http, client_data(life)).delete()
    assert heard == 3

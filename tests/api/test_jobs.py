"""Jobs over REST: submitted once, seen in the documented shape, changed while they live."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from pydantic import BaseModel

from elastrain.api.schemas import jobs as shapes
from elastrain.api.schemas import service as house
from elastrain.api.schemas import training
from elastrain.service.control import Control
from serving import RECEIPT, SPEC, Life, token_of


def fits(model: type[BaseModel], value: Any) -> None:
    """The answer has the documented fields, and no others."""
    model.model_validate(value, extra="forbid")


def test_a_submitted_job_waits_in_the_queue_and_says_what_for(http: httpx.Client) -> None:
    reply = http.post("/v1/jobs", json=SPEC)
    assert reply.status_code == 201
    job = reply.json()
    assert reply.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["status"] == "queued"
    assert http.get(f"/v1/jobs/{job['id']}").json() == job
    fits(shapes.Job, job)
    queue = http.get("/v1/queue").json()
    fits(house.QueuePage, queue)
    assert [item["id"] for item in queue["items"]] == [job["id"]]


def test_a_repeated_submit_with_the_same_key_is_the_same_job(http: httpx.Client) -> None:
    key = {"Idempotency-Key": "once"}
    first = http.post("/v1/jobs", json=SPEC, headers=key)
    again = http.post("/v1/jobs", json=SPEC, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = http.post("/v1/jobs", json={**SPEC, "seed": 1}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len(http.get("/v1/jobs").json()["items"]) == 1


def test_a_dry_run_completes_the_spec_and_stores_nothing(http: httpx.Client) -> None:
    reply = http.post("/v1/jobs?dry_run=true", json=SPEC)
    assert reply.status_code == 200
    fits(shapes.DryRun, reply.json())
    assert reply.json()["spec"]["retries"] == 3
    assert http.get("/v1/jobs").json()["items"] == []


def test_a_live_job_changes_its_range_and_a_wrong_range_names_the_allowed_one(
    http: httpx.Client, life: Life
) -> None:
    path = f"/v1/jobs/{life.job}"
    changed = http.patch(path, json={"workers": {"min": 2, "max": 3}})
    assert changed.status_code == 200
    assert changed.json()["workers"]["min"] == 2 and changed.json()["workers"]["max"] == 3
    refused = http.patch(path, json={"workers": {"min": 2, "max": 5}})
    assert refused.status_code == 422
    assert "4" in str(refused.json()["errors"])
    assert http.patch(path, json={"colour": "red"}).status_code == 422


def test_a_cancelled_job_shows_the_receipt(http: httpx.Client, life: Life) -> None:
    life.runs()
    life.is_cancelled(RECEIPT)
    job = http.get(f"/v1/jobs/{life.job}").json()
    fits(shapes.Job, job)
    assert job["receipt"] == {"attempt": 1, **RECEIPT}


def test_a_forced_cancel_is_for_admins(http: httpx.Client, life: Life, control: Control) -> None:
    member = {"Authorization": f"Bearer {token_of(control, 'member', 'default')}"}
    path = f"/v1/jobs/{life.job}/cancel?force=true"
    assert http.post(path, headers=member).status_code == 403
    assert http.post(path).status_code == 202
    job = http.get(f"/v1/jobs/{life.job}").json()
    assert (job["status"], job["receipt"]) == ("cancelled", None), "it had no attempt"


def test_a_queued_job_is_cancelled_at_once_and_twice_is_harmless(http: httpx.Client, life: Life) -> None:
    path = f"/v1/jobs/{life.job}/cancel"
    assert (http.post(path).status_code, http.post(path).status_code) == (202, 202)
    assert http.get(f"/v1/jobs/{life.job}").json()["status"] == "cancelled"


def test_every_request_to_a_job_is_answered_with_the_job_and_the_same_when_repeated(
    http: httpx.Client, life: Life
) -> None:
    path, key = f"/v1/jobs/{life.job}", {"Idempotency-Key": "once"}
    for action, status in (
        ("pause", "paused"),
        ("resume", "queued"),
        ("cancel", "cancelled"),
        ("retry", "queued"),
    ):
        first = http.post(f"{path}/{action}", headers=key)
        assert (first.status_code, first.json()["status"]) == (202, status)
        fits(shapes.Job, first.json())
        assert http.post(f"{path}/{action}", headers=key).json() == first.json()
    refused = http.post(f"{path}/checkpoint")
    assert (refused.status_code, refused.json()["allowed_actions"]) == (
        409,
        http.get(path).json()["allowed_actions"],
    )
    life.runs()
    assert http.post(f"{path}/checkpoint").json()["checkpoint_requests"] == {"asked": 1, "done": 0}


def test_a_clone_is_a_new_job_with_the_fields_that_were_overridden(http: httpx.Client, life: Life) -> None:
    life.runs()
    life.succeeds()
    overrides = {"optimizer": {"lr": 0.5}, "labels": {"try": "2"}}
    made = http.post(f"/v1/jobs/{life.job}/clone", json=overrides, headers={"Idempotency-Key": "once"})
    assert made.status_code == 201 and made.headers["location"] == f"/v1/jobs/{made.json()['id']}"
    spec = made.json()["spec"]
    assert (spec["optimizer"]["lr"], spec["optimizer"]["name"], spec["steps"]) == (0.5, "adam", 100)
    again = http.post(f"/v1/jobs/{life.job}/clone", json=overrides, headers={"Idempotency-Key": "once"})
    assert (again.status_code, again.json()) == (200, made.json())
    plain = http.post(f"/v1/jobs/{life.job}/clone")
    assert plain.json()["spec"] == http.get(f"/v1/jobs/{life.job}").json()["spec"]
    other = http.post(f"/v1/jobs/{life.job}/clone", json={"optimizer": {"name": "sgd", "lr": 0.1}})
    assert other.json()["spec"]["optimizer"]["name"] == "sgd"
    assert http.post(f"/v1/jobs/{life.job}/clone", json={"sede": 1}).status_code == 422


def test_lists_are_paged_filtered_and_newest_first(http: httpx.Client) -> None:
    ids = [http.post("/v1/jobs", json={**SPEC, "labels": {"n": str(n % 2)}}).json()["id"] for n in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        page = http.get("/v1/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        fits(shapes.JobPage, page)
        seen += [job["id"] for job in page["items"]]
        if not (cursor := page["next_cursor"]):
            break
    assert seen == ids[::-1]
    assert len(http.get("/v1/jobs?label=n:1").json()["items"]) == 2
    assert http.get("/v1/jobs?status=running").json()["items"] == []
    assert http.get("/v1/jobs?status=flying").status_code == 422


def test_an_id_may_be_shortened_while_it_is_unique(http: httpx.Client, life: Life) -> None:
    assert http.get(f"/v1/jobs/{life.job[:8]}").json()["id"] == life.job


def test_workers_generations_and_checkpoints_have_the_documented_shape(
    http: httpx.Client, life: Life
) -> None:
    life.runs()
    life.has_worker("w0", state="active", rank=0, share=0.5, joined_step=0)
    life.saves(10, model_safetensors=b"weights")
    for what, shape in (
        ("workers", training.WorkerPage),
        ("generations", training.GenerationPage),
        ("checkpoints", training.CheckpointPage),
        ("events", training.EventPage),
    ):
        reply = http.get(f"/v1/jobs/{life.job}/{what}")
        assert reply.status_code == 200
        fits(shape, reply.json())


def test_a_checkpoints_file_comes_as_an_attachment_with_its_size(http: httpx.Client, life: Life) -> None:
    life.saves(10, model_safetensors=b"weights")
    for step in ("10", "latest"):
        reply = http.get(f"/v1/jobs/{life.job}/checkpoints/{step}/model.safetensors")
        assert reply.content == b"weights"
        assert reply.headers["content-length"] == "7"
        assert reply.headers["content-disposition"].startswith("attachment")
        assert reply.headers["x-content-type-options"] == "nosniff"
    assert http.get(f"/v1/jobs/{life.job}/checkpoints/10/other").status_code == 404
    assert http.get(f"/v1/jobs/{life.job}/checkpoints/11/model.safetensors").status_code == 404


def test_strange_numbers_reach_every_answer_as_strict_json(http: httpx.Client, life: Life) -> None:
    life.runs()
    life.step(
        1,
        loss=float("nan"),
        up=float("inf"),
        down=float("-inf"),
        good=0.5,
        zero=-0.0,
        **{"": 1.0, "größe": 2.0},
    )
    rows = http.get(f"/v1/jobs/{life.job}/metrics").json()
    assert {name: rows[name][0][1] for name in ("loss", "up", "down", "good", "", "größe")} == {
        "loss": "NaN",
        "up": "Infinity",
        "down": "-Infinity",
        "good": 0.5,
        "": 1.0,
        "größe": 2.0,
    }
    for path in ("/v1/jobs", f"/v1/jobs/{life.job}"):
        text = http.get(path).text
        assert "Infinity" in text and ":NaN" not in text and ":Infinity" not in text


def test_the_service_tells_its_version_its_cluster_its_health_and_who_asks(http: httpx.Client) -> None:
    fits(house.Version, http.get("/v1/version").json())
    fits(house.Me, http.get("/v1/me").json())
    fits(house.Cluster, http.get("/v1/cluster").json())
    fits(house.Ready, http.get("/readyz").json())
    assert http.get("/healthz?db=1").json() == {"ok": True}


def test_prometheus_reads_how_many_jobs_are_in_each_status(http: httpx.Client, life: Life) -> None:
    reply = http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    assert "elastrain_store_up 1.0" in reply.text
    assert 'elastrain_jobs{status="queued"} 1.0' in reply.text
    assert 'elastrain_jobs{status="running"} 0.0' in reply.text


def test_twenty_submits_at_once_lose_nothing_and_lock_nobody_out(http: httpx.Client) -> None:
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda _: http.post("/v1/jobs", json=SPEC), range(20)))
        lists = list(pool.map(lambda _: http.get("/v1/jobs"), range(20)))
    assert {reply.status_code for reply in replies} == {201}
    assert {reply.status_code for reply in lists} == {200}
    assert len({reply.json()["id"] for reply in replies}) == len(lists[-1].json()["items"]) == 20

"""Projects: quotas and weights over REST and on the command line, and what they do to jobs."""

from collections.abc import Callable

import httpx
import pytest
from typer.testing import CliRunner, Result

from elastrain.api.cli.app import app
from elastrain.service.auth import digest, new_token
from elastrain.service.control import Control
from elastrain.service.store import tokens
from serving import SPEC, Life, Live

Run = Callable[..., Result]


@pytest.fixture
def run(live: Live, token: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ELASTRAIN_URL", live.url)
    monkeypatch.setenv("ELASTRAIN_TOKEN", token)

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == code, result.output
        return result

    return run


def test_a_project_is_made_listed_and_changed(http: httpx.Client) -> None:
    made = http.post("/v1/projects", json={"name": "vision", "quota": {"workers": 8}})
    assert made.status_code == 201 and made.headers["location"] == "/v1/projects/vision"
    assert made.json()["quota"] == {"workers": 8, "gpus": None} and made.json()["weight"] == 1.0
    assert http.post("/v1/projects", json={"name": "vision"}).status_code == 409
    changed = http.patch("/v1/projects/vision", json={"quota": {"gpus": 4}, "weight": 2.5}).json()
    assert (changed["quota"], changed["weight"]) == ({"workers": 8, "gpus": 4}, 2.5)
    freed = http.patch("/v1/projects/vision", json={"quota": {"workers": None}}).json()
    assert freed["quota"] == {"workers": None, "gpus": 4}
    listed = http.get("/v1/projects").json()["items"]
    assert [item["name"] for item in listed] == ["default", "vision"] and listed[0]["created_at"] is None
    assert http.patch("/v1/projects/default", json={"quota": {"workers": 3}}).status_code == 200
    assert http.post("/v1/projects", json={"name": "default"}).status_code == 409


def test_a_project_whose_answer_was_lost_is_made_once_and_answered_again(http: httpx.Client) -> None:
    key = {"Idempotency-Key": "k"}
    body = {"name": "vision", "quota": {"workers": 8}}
    first = http.post("/v1/projects", json=body, headers=key)
    http.patch("/v1/projects/vision", json={"weight": 3})
    again = http.post("/v1/projects", json=body, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json() and again.headers["location"] == first.headers["location"]
    refused = http.post("/v1/projects", json={"name": "speech"}, headers=key)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
    assert http.post("/v1/projects", json=body, headers={"Idempotency-Key": "other"}).status_code == 409


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "Bad Name"}, "/name"),
        ({"name": "a", "quota": {"workers": -1}}, "/quota/workers"),
        ({"name": "a", "quota": {"cpus": 1}}, "/quota/cpus"),
        ({"name": "a", "weight": 0}, "/weight"),
        ({"quota": {}}, "/name"),
    ],
)
def test_a_wrong_project_is_refused_by_field(
    http: httpx.Client, body: dict[str, object], pointer: str
) -> None:
    refused = http.post("/v1/projects", json=body)
    assert refused.status_code == 422 and refused.json()["errors"][0]["pointer"] == pointer


def test_only_an_admin_makes_projects_and_nobody_sees_those_of_others(
    http: httpx.Client, control: Control
) -> None:
    http.post("/v1/projects", json={"name": "vision"})
    secret = new_token()
    with control.store.write() as tx:
        tokens.add(tx, digest(secret), name="eva", role="member", project="vision", at=0.0)
    as_eva = {"Authorization": f"Bearer {secret}"}
    assert http.post("/v1/projects", json={"name": "mine"}, headers=as_eva).status_code == 403
    assert http.patch("/v1/projects/vision", json={"weight": 9}, headers=as_eva).status_code == 403
    assert http.patch("/v1/projects/nobody", json={"weight": 9}).status_code == 404
    for path in ("/v1/projects", "/v1/usage"):
        names = [
            item.get("name", item.get("project")) for item in http.get(path, headers=as_eva).json()["items"]
        ]
        assert names == ["vision"]


def test_usage_counts_what_runs_and_what_waits(http: httpx.Client, life: Life) -> None:
    life.runs()
    http.post("/v1/jobs", json={**SPEC, "workers": {"min": 3, "max": 3}})
    used = http.get("/v1/usage").json()["items"]
    assert used == [
        {
            "project": "default",
            "running": {"jobs": 1, "workers": 2, "cpus": 2.0, "gpus": 0.0},
            "waiting": {"jobs": 1, "workers": 3},
            "share": 0.0,
            "weight": 1.0,
            "quota": {"workers": None, "gpus": None},
        }
    ]


def test_the_command_line_shows_and_sets_quotas(run: Run, life: Life) -> None:
    assert "workers 4, gpus no limit, weight 1" in run("project", "create", "vision", "--workers", "4").stdout
    assert "weight 2" in run("project", "set", "vision", "--weight", "2").stdout
    assert run("project", "ls", "-o", "id").stdout.split() == ["default", "vision"]
    assert "no limit" in run("project", "ls").stdout
    run("project", "create", "vision", code=5)
    run("project", "set", "vision", code=2)
    assert "lots" in run("project", "set", "vision", "--workers", "lots", code=2).stderr
    run("project", "set", "nobody", "--gpus", "1", code=3)
    life.runs()
    run("project", "set", "default", "--workers", "8")
    assert "2/8" in run("usage").stdout

"""The OpenAPI document says what the service does: checked by calling it in every way that it allows."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from elastrain.service.jobs import Reason
from serving import Life, Live

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.fuzz
def test_every_answer_is_one_that_the_document_has(
    live: Live, life: Life, token: str, tmp_path: Path
) -> None:
    life.runs()
    life.step(1, loss=0.5)
    life.prints("w0", b"hello\n")
    life.succeeds()
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{live.url}/openapi.json"]
    command += ["-H", f"Authorization: Bearer {token}", "--checks", CHECKS, "--phases", "examples,coverage"]
    command += ["--exclude-path", "/readyz"]  # without a reconciler it is rightly 503
    command += ["--exclude-method", "PUT"]  # its body is a file, which the tool cannot make
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr


def test_every_operation_explains_itself_and_every_item_has_an_example(http: httpx.Client) -> None:
    document: dict[str, Any] = http.get("/openapi.json").json()
    operations = [way for ways in document["paths"].values() for way in ways.values()]
    assert all(operation["description"] for operation in operations)
    schemas = document["components"]["schemas"]
    told = ["Job", "Event", "LogLine", "Worker", "Generation", "Checkpoint", "QueueItem"]
    told += ["Cluster", "DryRun", "Version", "Me", "Ready", "Problem"]
    assert [name for name in told if "examples" not in schemas[name]] == []


def test_every_post_that_writes_can_be_repeated_with_a_key(http: httpx.Client) -> None:
    paths: dict[str, Any] = http.get("/openapi.json").json()["paths"]
    posts = {path: ways["post"] for path, ways in paths.items() if "post" in ways}
    keyless = {
        path
        for path, post in posts.items()
        if "idempotency-key" not in {given["name"].lower() for given in post.get("parameters", ())}
    }
    # drivers repeat by nonce and by number
    assert keyless == {"/v1/driver/claim", "/v1/driver/facts"}
    assert len(posts) > 8


def test_reasons_are_a_closed_list_in_the_document(http: httpx.Client) -> None:
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    assert set(schemas["Reason"]["enum"]) == {reason.value for reason in Reason}


@pytest.mark.parametrize(
    "model", ["Job", "Worker", "Generation", "Checkpoint", "QueueItem", "Event", "LogLine"]
)
def test_examples_have_the_shape_that_they_explain(model: str) -> None:
    from elastrain.api.schemas import jobs, service, training

    for room in (jobs, service, training):
        if found := getattr(room, model, None):
            for example in found.model_config["json_schema_extra"]["examples"]:
                found.model_validate(example, extra="forbid")
            return
    raise AssertionError(f"no schema {model}")

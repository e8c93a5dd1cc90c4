"""Checkpoints in a real bucket whose door fails one rank, or refuses the keys that everybody has."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from buckets import KEY, SECRET, Door, Fault, Seaweed
from engine.harness import Run, run, toy

pytestmark = pytest.mark.engine


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that this process and its workers take their keys from."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # one from before has another environment
    yield tmp_path / "credentials"
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


def saved(run: Run) -> list[int]:
    return [fact["step"] for fact in run.of_kind("checkpoint") if fact["state"] == "saved"]


def test_a_rank_that_cannot_save_costs_that_checkpoint_and_nothing_else(
    seaweed: Seaweed, door: Door, tmp_path: Path
) -> None:
    """The others do not wait for it, nothing half is published, and nobody makes a bucket."""
    bucket = f"s3://{seaweed.bucket()}/some prefix", seaweed.options(endpoint=door.url)
    failed: list[str] = []

    def refuse_rank_1(method: str, path: str) -> Fault | None:
        return Fault(403, "AccessDenied") if method == "PUT" and "-1-1-1-" in path and not failed else None

    def note(fact: dict[str, Any]) -> None:
        if fact.get("type") == "checkpoint.failed":
            failed.append(fact["message"])

    door.fault = refuse_rank_1
    done = run(tmp_path, toy(steps=60, checkpoint={"every_steps": 20}), 2, bucket=bucket, on_fact=note)
    assert done.outcome is not None and done.outcome.outcome == "succeeded"
    assert done.steps() == list(range(1, 61))
    assert "AccessDenied" in failed[0] and KEY in failed[0] and SECRET not in str(done.facts)
    assert saved(done)[-1] == 60
    assert done.attempt.checkpoints.steps() == sorted(set(saved(done)))[-3:]
    tried = [path for method, path in door.seen if method == "PUT" and "/attempts/1/workers/" in path]
    assert {path.rpartition("/")[2] for path in tried} == {"w0", "w1"}, "each has tried whether it may write"
    assert all(path.strip("/").count("/") > 0 for method, path in door.seen if method == "PUT")


def test_keys_that_expire_cost_checkpoints_until_new_ones_are_there_and_no_restart(
    seaweed: Seaweed, tmp_path: Path, credentials: Path
) -> None:
    def rotate(key: str, secret: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
        fresh.replace(credentials)

    def renew(fact: dict[str, Any]) -> None:
        if fact.get("type") == "checkpoint.failed":
            rotate(KEY, SECRET)

    rotate(KEY, SECRET)
    bucket = f"s3://{seaweed.bucket()}/x", {"endpoint": seaweed.url, "region": "us-east-1"}
    expire = (25, lambda _: rotate("the-expired-key", "its-secret"))
    done = run(tmp_path, toy(steps=60), 2, expire, bucket=bucket, on_fact=renew)
    assert done.outcome is not None and done.outcome.outcome == "succeeded"
    assert done.steps() == list(range(1, 61)) and len(done.of_kind("generation")) == 1
    said = done.events("checkpoint.failed")[0]["message"]
    assert "denied to the key the-expired-key" in said and "its-secret" not in str(done.facts)
    assert max(saved(done)) == 60  # two are written beside each other, and the earlier one may come last

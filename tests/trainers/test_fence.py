"""Attempts that overlap: the older one wakes up late, and must not touch anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastrain.trainers.checkpoints.fence import Fence, Superseded
from elastrain.trainers.checkpoints.manifests import Checkpoints, Pending
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import AlreadyExists, Storage, StorageError, open_storage

SPEC = parse_spec(
    {"name": "x", "task": "t:T", "batch": {"size": 8, "microbatch": 2}, "steps": 9, "checkpoint": {"keep": 1}}
)
CURSOR = {"updates": 1, "metrics": {}, "evaluated_step": 0, "chain": "", "counts": {}}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(tmp_path.as_uri())


def checkpoints(storage: Storage, attempt: int, told: list[Any]) -> Checkpoints:
    return Checkpoints(storage, "j1", attempt, SPEC, told.append)


def whole(storage: Storage, step: int) -> Pending:
    """A checkpoint of which everything but the manifest is uploaded."""
    data = b"model"
    storage.put(f"jobs/j1/checkpoints/{step:010d}/model.safetensors", data, create_only=False)
    model = {"file": "model.safetensors", "bytes": len(data), "sha256": "0", "params": []}
    model |= {"params_digest": "p", "buffers_digest": "b", "cursor": {**CURSOR, "step": step}}
    part = {"step": step, "generation": 1, "rank": 0, "model": model, "part": None, "digests": []}
    return Pending(step, ("w0",), {0: part})


def keys(storage: Storage) -> dict[str, bytes]:
    return {entry.key: storage.get(entry.key) for entry in storage.list("jobs/j1")}


@pytest.mark.parametrize("newer", [2, 3])
def test_an_attempt_that_wakes_up_after_a_later_one_began_writes_moves_and_deletes_nothing(
    storage: Storage, newer: int
) -> None:
    """Also if the attempt between the two never began."""
    Fence(storage, "j1", 1).begin()
    old = checkpoints(storage, 1, told := [])
    old.save(whole(storage, 1))
    late = whole(storage, 2)
    Fence(storage, "j1", newer).begin()
    before = keys(storage)
    with pytest.raises(Superseded):
        old.save(late)
    with pytest.raises(Superseded):
        old.set_aside(1, "it looked bad to somebody who slept")
    with pytest.raises(Superseded):
        old._retain(CURSOR)
    assert keys(storage) == before
    assert [fact["step"] for fact in told if fact["kind"] == "checkpoint"] == [1]


def test_an_attempt_that_was_passed_over_cannot_begin_any_more(storage: Storage) -> None:
    Fence(storage, "j1", 1).begin()
    Fence(storage, "j1", 3).begin()
    with pytest.raises(Superseded):
        Fence(storage, "j1", 2).begin()


def test_two_processes_of_one_attempt_begin_it_once(storage: Storage) -> None:
    first = Fence(storage, "j1", 1)
    first.begin()
    first.begin()
    with pytest.raises(AlreadyExists):
        Fence(storage, "j1", 1).begin()


def test_a_bad_manifest_is_set_aside_under_the_name_of_the_attempt_that_fell_back(storage: Storage) -> None:
    Fence(storage, "j1", 1).begin()
    checkpoints(storage, 1, []).save(whole(storage, 5))
    storage.put("jobs/j1/checkpoints/0000000005/model.safetensors", b"mod", create_only=False)
    Fence(storage, "j1", 2).begin()
    second = checkpoints(storage, 2, told := [])
    assert second.newest() is None
    folder = [entry.key.rsplit("/", 1)[1] for entry in storage.list("jobs/j1/checkpoints")]
    assert folder == ["manifest.bad-2.json", "model.safetensors"]
    second.save(whole(storage, 5))
    manifest = json.loads(storage.get("jobs/j1/checkpoints/0000000005/manifest.json"))
    assert (manifest["attempt"], second.steps()) == (2, [5])
    assert [fact["state"] for fact in told if fact["kind"] == "checkpoint"] == ["bad", "saved"]


def test_a_manifest_whose_answer_was_lost_counts_as_saved(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = storage.put

    def repeated(key: str, data: bytes | Path, *, create_only: bool = True) -> None:
        put(key, data, create_only=create_only)
        put(key, data, create_only=create_only)

    pending = whole(storage, 1)
    monkeypatch.setattr(storage, "put", repeated)
    checkpoints(storage, 1, told := []).save(pending)
    assert [fact["state"] for fact in told if fact["kind"] == "checkpoint"] == ["saved"]


def test_old_checkpoints_that_cannot_be_deleted_now_do_not_unmake_the_new_one(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = checkpoints(storage, 1, told := [])
    mine.save(whole(storage, 1))
    second = whole(storage, 2)

    def refuse(key: str) -> None:
        raise StorageError("unavailable", "503")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "delete", refuse)
        mine.save(second)
    assert [fact["state"] for fact in told if fact["kind"] == "checkpoint"] == ["saved", "saved"]
    mine.save(whole(storage, 3))
    assert mine.steps() == [3]


def test_checkpoints_of_steps_that_were_skipped_do_not_push_out_the_newest_one_that_is_proven(
    storage: Storage,
) -> None:
    Fence(storage, "j1", 1).begin()
    saved = checkpoints(storage, 1, [])
    saved.spec = SPEC.model_copy(update={"checkpoint": SPEC.checkpoint.model_copy(update={"keep": 2})})
    found = []
    for step in range(1, 7):
        pending = whole(storage, step)
        went_wrong = {"skipped_in_row": max(0, step - 3), "proven": min(step - 1, 2)}
        pending.parts[0]["model"]["cursor"] |= went_wrong
        saved.save(pending)
        found.append(saved.steps())
    assert found == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5], [2, 5, 6]]

"""A real bucket behind a door that fails on purpose: answers are lost, late or refused, and keys change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from buckets import KEY, SECRET, Door, Fault, Seaweed
from elastrain.trainers.checkpoints.fence import Fence
from elastrain.trainers.storage import AlreadyExists, Storage, StorageError, open_storage

pytestmark = pytest.mark.stores

BIG = bytes(range(256)) * 60_000  # three parts


@pytest.fixture
def storage(seaweed: Seaweed, door: Door) -> Storage:
    return seaweed.storage("some prefix/é", door)


def times(count: int, fault: Fault, method: str = "", path: str = "") -> Callable[[str, str], Fault | None]:
    """The fault, for the first `count` requests that fit."""
    left = [count]

    def wanted(asked: str, where: str) -> Fault | None:
        if method not in ("", asked) or path not in where or left[0] == 0:
            return None
        left[0] -= 1
        return fault

    return wanted


@pytest.mark.parametrize(
    "fault", [Fault(503), Fault(500, "InternalError"), Fault(cut=True), Fault(wait_s=0.5)]
)
def test_a_store_that_fails_for_a_moment_is_asked_again(storage: Storage, door: Door, fault: Fault) -> None:
    door.fault = times(2, fault)
    storage.put("k", b"v", create_only=False)
    door.fault = times(2, fault)
    assert storage.get("k") == b"v"
    door.fault = times(2, fault)
    assert [entry.key for entry in storage.list()] == ["k"]


def test_a_part_of_a_large_object_that_fails_is_sent_again(storage: Storage, door: Door) -> None:
    door.fault = times(2, Fault(503), "PUT", "partNumber=2")
    storage.put("large", BIG, create_only=False)
    assert sum("partNumber=2" in path for _, path in door.seen) == 3
    assert storage.get("large") == BIG


def test_a_large_object_that_was_cut_short_is_not_there(storage: Storage, door: Door) -> None:
    door.fault = times(10**6, Fault(403, "AccessDenied"), "PUT", "partNumber=2")
    with pytest.raises(StorageError):
        storage.put("large", BIG, create_only=False)
    door.fault = lambda method, path: None
    assert storage.list() == []


def test_a_conditional_put_of_a_large_object_has_one_winner(storage: Storage) -> None:
    won: list[int] = []

    def race(me: int) -> None:
        try:
            storage.put("large", bytes([me]) * len(BIG))
        except AlreadyExists:
            return
        won.append(me)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.get("large") == bytes(won) * len(BIG)


def test_a_missing_bucket_is_named_and_never_made(seaweed: Seaweed, door: Door) -> None:
    storage = open_storage("s3://nobody-made-it/prefix", seaweed.options(endpoint=door.url))
    with pytest.raises(StorageError, match="'nobody-made-it' does not exist: make it") as caught:
        storage.check()
    assert caught.value.kind == "missing_bucket"
    assert {method for method, _ in door.seen} == {"GET"}


def test_no_verb_asks_for_a_bucket_to_be_made(storage: Storage, door: Door, tmp_path: Path) -> None:
    storage.check()
    for key in ("a", "b c/ü"):
        storage.put(key, b"x")
        storage.put(key, b"y", create_only=False)
    storage.move("a", "d")
    storage.download("d", tmp_path / "d")
    storage.list()
    storage.delete("d")
    bucket_itself = [(method, path) for method, path in door.seen if path.strip("/").count("/") == 0]
    assert {method for method, _ in bucket_itself} == {"GET", "POST"}  # a listing, a bulk delete
    assert all("delete" in path for method, path in bucket_itself if method == "POST")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(403, "AccessDenied"), "AccessDenied"),
        (Fault(403, "InvalidAccessKeyId"), "InvalidAccessKeyId"),
        (Fault(400, "ExpiredToken"), "ExpiredToken"),
        (Fault(401, "Unauthorized"), "Unauthorized"),
    ],
)
@pytest.mark.parametrize("verb", ["get", "put", "list", "delete"])
def test_what_is_refused_says_why_to_which_key_and_never_the_secret(
    storage: Storage, door: Door, verb: str, fault: Fault, said: str
) -> None:
    door.fault = times(10**6, fault)
    asked = {"get": ("k",), "put": ("k", b"x"), "list": (), "delete": ("k",)}
    with pytest.raises(StorageError) as caught:
        getattr(storage, verb)(*asked[verb])
    assert caught.value.kind == "denied"
    assert said in caught.value.message and KEY in caught.value.message
    assert SECRET not in caught.value.message


def test_a_trouble_that_lasts_reads_the_same_every_time(storage: Storage, door: Door) -> None:
    door.fault = times(10**6, Fault(403, "AccessDenied"))
    told = set()
    for _ in range(3):
        with pytest.raises(StorageError) as caught:
            storage.get("k")
        told.add(caught.value.message)
    assert len(told) == 1


def test_keys_that_were_rotated_are_used_by_the_next_request(
    seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def rotate(key: str, secret: str) -> None:
        fresh = tmp_path / "fresh"
        fresh.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
        fresh.replace(file)

    rotate(KEY, SECRET)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    storage = open_storage(f"s3://{seaweed.bucket()}/x", {"endpoint": seaweed.url, "region": "us-east-1"})
    storage.put("a", b"1")
    rotate("a-key-that-was-withdrawn", "whatever")
    with pytest.raises(StorageError, match="a-key-that-was-withdrawn") as caught:
        storage.put("b", b"2")
    assert caught.value.kind == "denied"
    rotate(KEY, SECRET)
    storage.put("b", b"2")
    assert storage.get("a") == b"1"


def test_an_attempt_whose_answer_was_lost_does_not_take_its_own_claim_for_anothers(
    storage: Storage, door: Door
) -> None:
    door.fault = times(1, Fault(cut_after=True), "PUT", "attempts/1/claim.json")
    Fence(storage, "j1", 1).begin()
    assert sum("claim.json" in path and method == "PUT" for method, path in door.seen) == 2
    with pytest.raises(AlreadyExists):
        Fence(storage, "j1", 1).begin()

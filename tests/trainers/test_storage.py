"""Storage as incidents: odd names, two writers, a missing object, a bucket that nobody made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disks import small
from elastrain.trainers.storage import AlreadyExists, NotFound, Storage, StorageError, open_storage

SEGMENT = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="/#"), min_size=1, max_size=30
)
KEYS = st.lists(SEGMENT.filter(lambda s: s.strip(".") != ""), min_size=1, max_size=4).map("/".join)


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.stores)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        made: Storage = request.getfixturevalue("seaweed").storage("a prefix/with ünïcode [and] more")
        return made
    return open_storage("memory://" if request.param == "memory" else f"file://{tmp_path}/not yet there")


@settings(max_examples=150, deadline=None)
@given(key=KEYS, data=st.binary(max_size=100))
def test_any_name_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, key: str, data: bytes
) -> None:
    storage = open_storage(f"file://{tmp_path_factory.mktemp('keys')}")
    try:
        storage.put(key, data)
    except StorageError as error:
        assert error.kind in ("bad_key", "unavailable")  # refused, never changed into another key
        assert storage.list() == []
    else:
        assert storage.get(key) == data
        assert [(e.key, e.size) for e in storage.list()] == [(key, len(data))]


def test_of_two_writers_of_one_key_the_first_wins(storage: Storage) -> None:
    storage.put("attempts/2/claim.json", b"mine")
    with pytest.raises(AlreadyExists, match=r"attempts/2/claim\.json"):
        storage.put("attempts/2/claim.json", b"yours")
    assert storage.get("attempts/2/claim.json") == b"mine"


def test_of_eight_threads_that_race_for_a_key_exactly_one_wins(storage: Storage) -> None:
    for round_ in range(20):
        won: list[int] = []
        barrier = threading.Barrier(8)

        def race(me: int, key: str, won: list[int], barrier: threading.Barrier) -> None:
            barrier.wait()
            try:
                storage.put(key, bytes([me]) * 1000)
            except AlreadyExists:
                return
            won.append(me)

        key = f"race/{round_}"
        threads = [threading.Thread(target=race, args=(i, key, won, barrier)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert storage.get(key) == bytes([won[0]]) * 1000


def test_brackets_and_stars_in_a_name_are_not_globs(storage: Storage) -> None:
    names = ["run[1]", "run*", "run?", "{a,b}", "run1"]
    for name in names:
        storage.put(f"{name}/checkpoints/1", b"x")
        storage.put(f"{name}/checkpoints/2", b"x")
    for name in names:
        assert [e.key for e in storage.list(name)] == [f"{name}/checkpoints/1", f"{name}/checkpoints/2"]
    for entry in storage.list("run*"):
        storage.delete(entry.key)
    assert storage.list("run*") == []
    assert len(storage.list("run1")) == len(storage.list("run[1]")) == 2


def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name(storage: Storage) -> None:
    storage.put("jobs/a/1", b"x")
    storage.put("jobs/ab/1", b"x")
    assert [e.key for e in storage.list("jobs/a")] == [e.key for e in storage.list("jobs/a/")] == ["jobs/a/1"]
    assert storage.list("nothing here") == []


def test_a_missing_object_is_named(storage: Storage, tmp_path: Path) -> None:
    for verb in (storage.get, storage.size, storage.stream):
        with pytest.raises(NotFound, match="no/such thing"):
            verb("no/such thing")
    with pytest.raises(NotFound, match="no/such thing"):
        storage.move("no/such thing", "elsewhere")
    with pytest.raises(NotFound, match="no/such thing"):
        storage.download("no/such thing", tmp_path / "file")
    storage.delete("no/such thing")


def test_a_moved_object_is_in_one_place_only(storage: Storage) -> None:
    storage.put("a/manifest.json", b"bad")
    storage.move("a/manifest.json", "a/manifest.bad-2.json")
    assert [e.key for e in storage.list("a")] == ["a/manifest.bad-2.json"]
    storage.put("a/manifest.json", b"good")  # the step can be saved again


def test_a_file_goes_up_and_comes_down_whole(storage: Storage, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40_000  # more than two pieces
    (tmp_path / "up").write_bytes(data)
    storage.put("part", tmp_path / "up")
    storage.download("part", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == data
    assert storage.size("part") == len(data)
    assert b"".join(storage.stream("part", 1000)) == data[1000:]
    assert list(storage.stream("part", len(data))) == []
    storage.put("empty", b"")
    assert storage.get("empty") == b""
    assert list(storage.stream("empty")) == []


@pytest.mark.parametrize("key", ["", "/absolute", "folder/", "a//b", "../outside", "a/../../b", "nul\0"])
def test_a_key_that_could_leave_the_folder_is_refused(storage: Storage, key: str) -> None:
    with pytest.raises(StorageError) as caught:
        storage.put(key, b"x")
    assert caught.value.kind == "bad_key"


@pytest.mark.parametrize("url", ["file://relative/path", "nonsense", "ftp://host/x", ""])
def test_a_url_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(StorageError) as caught:
        open_storage(url)
    assert caught.value.kind == "bad_url"
    assert repr(url) in caught.value.message


def test_a_folder_with_odd_characters_is_that_folder(tmp_path: Path) -> None:
    open_storage(f"file://{tmp_path}/my data?#1").put("k", b"v")
    assert (tmp_path / "my data?#1" / "k").read_bytes() == b"v"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    with small(folder, "1m"):
        yield folder


def test_a_full_disk_is_named_with_its_size_and_room_that_comes_back_is_used(small_disk: Path) -> None:
    storage = open_storage((small_disk / "objects").as_uri())
    storage.put("first", b"x" * 700_000)
    with pytest.raises(
        StorageError, match=r"the disk of .*small disk.* is full \(\d MiB of 1 MiB used\)"
    ) as caught:
        storage.put("second", b"x" * 700_000)
    assert caught.value.kind == "full"
    assert [entry.key for entry in storage.list()] == ["first"], "nothing half of it is left"
    storage.delete("first")
    storage.put("second", b"x" * 700_000)
    assert storage.size("second") == 700_000

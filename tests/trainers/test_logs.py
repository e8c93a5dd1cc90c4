"""Logs on their way to storage: bursts, odd bytes, a storage that fails, an answer that is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastrain.trainers.launching import logs
from elastrain.trainers.launching.logs import LogShipper
from elastrain.trainers.storage import Storage, StorageError, open_storage


class Flaky:
    """A storage whose puts can be told to fail, before or after they took effect."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.fail = ""

    def put(self, key: str, data: bytes | Path, *, create_only: bool = True) -> None:
        if self.fail == "before":
            raise StorageError("unavailable", "storage is away")
        self.storage.put(key, data, create_only=create_only)
        if self.fail == "after":
            raise StorageError("unavailable", "the answer was lost")

    def __getattr__(self, name: str) -> object:
        return getattr(self.storage, name)


@pytest.fixture
def storage() -> Flaky:
    return Flaky(open_storage("memory://"))


@pytest.fixture
def said() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture
def shipper(storage: Flaky, said: list[tuple[str, int, int]]) -> LogShipper:
    return LogShipper(storage, "j1", 2, lambda *segment: said.append(segment))  # type: ignore[arg-type]


def stored(storage: Flaky, worker: str = "w1") -> bytes:
    entries = storage.storage.list(f"jobs/j1/logs/2/{worker}")
    joined = b""
    for entry in entries:
        assert int(entry.key.rsplit("/", 1)[1]) == len(joined), "a gap or an overlap"
        joined += storage.storage.get(entry.key)
    return joined


def test_joined_segments_are_the_file_whatever_bytes_it_holds(
    storage: Flaky, shipper: LogShipper, said: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    path = tmp_path / "w1.log"
    shipper.follow("w1", path)
    assert shipper.ship()  # there is no file yet
    emoji = "😀".encode()
    pieces = [
        b"\xff\xfe",
        *(emoji[i : i + 1] for i in range(4)),
        b"\0\r50%\r100%\n",
        b"x" * (1 << 20) + b"\n",
        b"after\n",
    ]
    with path.open("ab") as file:
        for piece in pieces:
            file.write(piece)
            file.flush()
            assert shipper.ship()
    assert stored(storage) == b"".join(pieces)
    assert sum(size for _, _, size in said) == len(b"".join(pieces))
    assert shipper.forget("w1") == 0


def test_a_long_burst_goes_in_pieces(storage: Flaky, shipper: LogShipper, tmp_path: Path) -> None:
    path = tmp_path / "w1.log"
    path.write_bytes(bytes(range(256)) * 4096 * 5)
    shipper.follow("w1", path)
    assert shipper.ship()
    assert stored(storage) == path.read_bytes()
    assert max(e.size for e in storage.storage.list("jobs/j1/logs/2/w1")) == logs.SEGMENT_BYTES


def test_a_storage_that_was_away_gets_everything_later_and_the_other_log_goes_on(
    storage: Flaky, shipper: LogShipper, tmp_path: Path
) -> None:
    for worker in ("w1", "w2"):
        (tmp_path / worker).write_bytes(b"one\n")
        shipper.follow(worker, tmp_path / worker)
    storage.fail = "before"
    assert not shipper.ship()
    storage.fail = ""
    (tmp_path / "w1").write_bytes(b"one\ntwo\n")
    assert shipper.ship()
    assert stored(storage, "w1") == b"one\ntwo\n"
    assert stored(storage, "w2") == b"one\n"


def test_a_lost_answer_neither_doubles_nor_loses_a_line(
    storage: Flaky, shipper: LogShipper, said: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    path = tmp_path / "w1.log"
    shipper.follow("w1", path)
    path.write_bytes(b"one\n")
    storage.fail = "after"
    assert not shipper.ship()
    storage.fail = ""
    path.write_bytes(b"one\ntwo\n")  # it grew before the second try
    assert shipper.ship()
    assert stored(storage) == b"one\ntwo\n"
    assert said == [("w1", 0, 4), ("w1", 4, 4)]


def test_what_cannot_be_stored_at_the_end_is_counted(
    storage: Flaky, shipper: LogShipper, tmp_path: Path
) -> None:
    (tmp_path / "w1").write_bytes(b"last words\n")
    shipper.follow("w1", tmp_path / "w1")
    storage.fail = "before"
    assert shipper.forget("w1") == len(b"last words\n")

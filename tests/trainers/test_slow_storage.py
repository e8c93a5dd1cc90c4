"""A store that is away, slow or hung while workers load from it or save to it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from elastrain.trainers.checkpoints import restore
from elastrain.trainers.checkpoints import snapshots as checkpoint
from elastrain.trainers.checkpoints.restore import BadCheckpoint, Files
from elastrain.trainers.checkpoints.snapshots import Snapshots
from elastrain.trainers.exchange.transports import Broken, Halted
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.storage import Storage, StorageError, open_storage
from elastrain.trainers.training.replica import Replica, make_module
from engine.tasks.toy import Toy

WAIT_S = 10.0
DATA = save({"w": torch.arange(4.0)})
BATCH, WORKERS = {"size": 64, "microbatch": 8}, {"min": 1, "max": 4}
SPEC = parse_spec(
    {"name": "toy", "task": "engine.tasks.toy:Toy", "steps": 9, "batch": BATCH, "workers": WORKERS}
)


class Away:
    """A store that does not answer the first `times` times."""

    def __init__(self, storage: Storage, times: int) -> None:
        self.storage, self.left = storage, times

    def stream(self, key: str) -> Iterator[bytes]:
        self.left -= 1
        if self.left >= 0:
            raise StorageError("unavailable", "no route to the store")
        return self.storage.stream(key)


def files(folder: Path, *, away: int = 0, alive: Any = lambda: None, **described: Any) -> Files:
    storage = open_storage(folder.as_uri())
    storage.put("c/model.safetensors", DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    file = {"name": "model.safetensors", "bytes": len(DATA), "sha256": digest, **described}
    return Files(Away(storage, away), "c", {"step": 7, "files": [file]}, alive)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "RETRY_S", 0.0)


def test_a_store_that_is_away_for_a_moment_makes_no_checkpoint_bad(tmp_path: Path) -> None:
    assert files(tmp_path, away=3).read("model.safetensors")["w"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_store_that_stays_away_breaks_the_generation_and_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "PATIENCE_S", -1.0)
    with pytest.raises(Broken, match="no route to the store"):
        files(tmp_path, away=1000).read("model.safetensors")


def test_a_file_that_is_missing_short_or_altered_is_the_checkpoints_fault(tmp_path: Path) -> None:
    for number, wrong in enumerate(({"bytes": 3}, {"sha256": "0"})):
        with pytest.raises(BadCheckpoint):
            files(tmp_path / str(number), **wrong).read("model.safetensors")
    found = files(tmp_path / "missing")
    (tmp_path / "missing/c/model.safetensors").unlink()
    with pytest.raises(BadCheckpoint):
        found.read("model.safetensors")


@pytest.mark.parametrize("away", [0, 1000])
def test_whoever_loads_leaves_when_the_generation_is_over(tmp_path: Path, away: int) -> None:
    def halted() -> None:
        raise Halted

    with pytest.raises(Halted):
        files(tmp_path, away=away, alive=halted).read("model.safetensors")


class Hung:
    """A store in which no upload ends until a test says so."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def put(self, key: str, data: bytes) -> None:
        assert self.go_on.wait(WAIT_S)


class Session:
    def __init__(self, halts: bool) -> None:
        self.said: list[Json] = []
        self.halts = halts

    def works(self, generation: int) -> None:
        if self.halts:
            raise Halted

    def send(self, kind: str, **fields: Any) -> None:
        self.said.append({"kind": kind, **fields})


def take_three(session: Session, storage: Hung) -> None:
    """One is uploaded, one waits for that, and a third one is due."""
    replica = Replica(SPEC, Toy(), FlatModel(make_module(Toy(), SPEC.seed)), 300, 100)
    ownership = Ownership.of(replica.model.space, [Domain("w0", "g0", "n0")])
    replica.begin(ownership, 0)
    snapshots = Snapshots(session, storage, "job", 1)  # type: ignore[arg-type]
    try:
        for _ in range(3):
            snapshots.take(replica, ownership, 0, generation=1)
    finally:
        storage.go_on.set()
        snapshots.flush(WAIT_S)


def test_whoever_waits_for_an_upload_leaves_when_the_generation_is_over() -> None:
    with pytest.raises(Halted):
        take_three(Session(halts=True), Hung())


def test_an_upload_that_never_ends_costs_the_next_checkpoint_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint, "ROOM_S", 0.05)
    session = Session(halts=False)
    take_three(session, Hung())
    failed = [said for said in session.said if said["kind"] == "part_failed"]
    assert [f["why"] for f in failed][:1] == ["the one before it is not uploaded after 0 s"]

"""A worker that may not write says so when it starts, and trains."""

from __future__ import annotations

from typing import Any

import pytest

from elastrain.trainers.launching.launcher import WorkerStart
from elastrain.trainers.storage import StorageError, open_storage
from elastrain.trainers.training.first_put import key, try_in_background

START = WorkerStart("w3", "g1", "ws://127.0.0.1:1", "key", "j-1", 2, 1.0)


class Refusing:
    def put(self, *_: Any, **__: Any) -> None:
        raise StorageError("denied", "access was denied to the key abc")


def test_a_store_that_refuses_is_said_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    try_in_background(Refusing(), START).join()  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "w3 cannot write" in said and "denied to the key abc" in said


def test_a_store_that_takes_it_is_no_word_worth_however_often(capsys: pytest.CaptureFixture[str]) -> None:
    storage = open_storage("memory://")
    for _ in range(2):
        try_in_background(storage, START).join()
    assert storage.get(key(START)) == b"ok" and capsys.readouterr().err == ""

"""A worker whose coordinator is gone, or only slow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from elastrain.trainers.launching.launcher import WorkerStart
from elastrain.trainers.training import lifeline
from elastrain.trainers.training.lifeline import Lifeline, Silence
from elastrain.trainers.training.session import Dismissed, Session

WAIT_S = 20.0


def test_a_coordinator_that_says_nothing_for_a_minute_is_gone() -> None:
    silence = Silence(60.0, most_s=1.0)
    assert not any(silence.look(at / 2) for at in range(121))
    assert silence.look(60.5)


def test_a_coordinator_that_stood_still_for_seconds_is_not() -> None:
    silence = Silence(60.0, most_s=1.0)
    for at in range(10):
        assert not any(silence.look(59.0 * at + second) for second in range(59))
        silence.heard()


def test_a_worker_that_stood_still_for_an_hour_has_not_waited_for_its_coordinator() -> None:
    silence = Silence(60.0, most_s=1.0)
    assert not silence.look(0.0)
    assert not silence.look(3600.0)
    assert silence.silent_s == 1.0


class Loud:
    """A coordinator that welcomes a worker, and then does as a test says."""

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self.speaks = threading.Event()
        self.server: Server = serve(self.talk, "127.0.0.1", 0)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def talk(self, connection: ServerConnection) -> None:
        if next(iter(connection), None) is None:
            return
        connection.send(json.dumps({"kind": "beat"}))
        connection.send(json.dumps({"kind": "welcome", "beat_s": 0.02, "silence_s": self.silence_s}))
        for _ in connection:  # the worker's beats
            if self.speaks.is_set():
                connection.send(json.dumps({"kind": "beat"}))

    def session(self) -> Session:
        port = self.server.socket.getsockname()[1]
        session = Session(WorkerStart("w0", "g0", f"ws://127.0.0.1:{port}", "key", "job", 1))
        session.register("n0", {})
        return session


@pytest.fixture
def loud() -> Iterator[Any]:
    made: list[Loud] = []

    def make(silence_s: float) -> Loud:
        made.append(Loud(silence_s))
        return made[-1]

    yield make
    for one in made:
        one.server.shutdown()
        one.thread.join(WAIT_S)


def test_whoever_waits_for_an_opening_is_dismissed_when_the_coordinator_is_silent(loud: Any) -> None:
    session = loud(0.1).session()
    with pytest.raises(Dismissed, match="nothing was heard of the coordinator"):
        session.next_opening()
    with pytest.raises(Dismissed):
        session.check(1)
    session.close()


def test_a_coordinator_that_only_beats_is_not_silent(loud: Any) -> None:
    coordinator = loud(1.0)
    coordinator.speaks.set()
    session = coordinator.session()
    assert not threading.Event().wait(1.5), "longer than it may be silent"
    session.check(1)
    session.close()


def test_a_process_that_does_not_end_by_itself_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "EXIT_S", 0.05)
    ended = threading.Event()
    Lifeline(60.0, 0.01, lambda why: None, lambda: True, ended.set)
    assert ended.wait(WAIT_S)


def test_a_worker_whose_coordinator_is_there_is_never_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "EXIT_S", 0.02)
    ended, looks = threading.Event(), []
    lost: list[str] = []
    line = Lifeline(60.0, 0.001, lost.append, lambda: bool(looks.append(1)), ended.set)
    while len(looks) < 100:
        assert not ended.wait(0.001)
    line.close()
    assert lost == []

"""SIGTERM as a notice, in one process."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator

import pytest

from elastrain.trainers.training import sigterm


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def listening() -> queue.SimpleQueue[tuple[float, str]]:
    told: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
    sigterm.listen(lambda *said: told.put(said))
    return told


def test_the_first_sigterm_is_told_and_the_others_change_nothing() -> None:
    told = listening()
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGTERM)
    assert told.get(timeout=10) == (30.0, "SIGTERM")
    assert told.empty()


def test_the_grace_time_is_that_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTRAIN_GRACE_S", "120")
    told = listening()
    os.kill(os.getpid(), signal.SIGTERM)
    assert told.get(timeout=10) == (120.0, "SIGTERM")


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan"])
def test_a_grace_time_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ELASTRAIN_GRACE_S", text)
    with pytest.raises(ValueError, match=f"ELASTRAIN_GRACE_S is '{text}': give the seconds"):
        listening()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_that_was_there_is_called_too_and_what_it_raises_goes_no_further(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def theirs(number: int, frame: object) -> None:
        raise SystemExit("theirs")

    signal.signal(signal.SIGTERM, theirs)
    told = listening()
    os.kill(os.getpid(), signal.SIGTERM)
    assert told.get(timeout=10)[1] == "SIGTERM"
    assert "SystemExit: theirs" in capsys.readouterr().err


def test_a_forked_child_has_the_handler_back_that_was_there_before() -> None:
    listening()
    child = os.fork()
    if child == 0:
        os._exit(0 if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL else 1)
    assert os.waitpid(child, 0)[1] == 0

"""The demo takes away what it started, however it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastrain.api.cli import demo_server
from elastrain.api.cli.demo_screen import Screen

UNTIL_TOLD = "import sys; sys.stdin.read()"


class Impatient(demo_server.Server):
    """While it is stopped, ctrl-C is pressed once more."""

    def stop(self) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait()


def test_ctrl_c_was_pressed_twice_and_nothing_of_the_demo_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Impatient] = []

    def start(home: Path, *_: str) -> Impatient:
        process = subprocess.Popen([sys.executable, "-c", UNTIL_TOLD], stdin=subprocess.PIPE)
        started.append(Impatient(home, process))
        return started[0]

    monkeypatch.setattr(demo_server, "start", start)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="the first one"), demo_server.running():
        raise KeyboardInterrupt("the first one")
    assert started[0].process.returncode == 0 and not started[0].home.exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_only_the_seconds_of_a_line_are_dim(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    Screen().tell("✔", "it went well", "green")
    seconds, _, rest = capsys.readouterr().out.partition(" s ")
    assert seconds.startswith("\x1b[2m") and "\x1b[32mit went well" in rest

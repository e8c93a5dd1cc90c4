"""A worker must not outlive its coordinator. Who notices, and who ends what cannot end by itself.

    the coordinator beats ──▶ heard ─╮
                                     ├─ silent for SILENCE_S ──▶ gone ──▶ every wait of this worker ends
    the connection closes ───────────╯                            └─ still here EXIT_S later ──▶ it is ended

A host that vanishes closes no connection, so silence counts as well. A driver that stands still for seconds
must not cost anything, nor must a worker that stands still itself: only time in which it looked counts.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

SILENCE_S = 60.0  # without a word of the coordinator; the welcome may say otherwise
EXIT_S = 60.0  # for the training thread to come back from the user's code, and for uploads that are owed
EXIT_CODE = 70


class Silence:
    """How long nothing was heard. Between two looks `most_s` count at most: who slept could not hear."""

    def __init__(self, limit_s: float, most_s: float) -> None:
        self.limit_s, self.most_s = limit_s, most_s
        self.silent_s = 0.0
        self._looked: float | None = None

    def heard(self) -> None:
        self.silent_s = 0.0

    def look(self, now: float) -> bool:
        """Is it too long? now: s, monotonic."""
        if self._looked is not None:
            self.silent_s += min(max(now - self._looked, 0.0), self.most_s)
        self._looked = now
        return self.silent_s > self.limit_s


class Lifeline:
    """Looks, in a thread of its own, whether the coordinator is still heard and whether this process ends."""

    def __init__(
        self,
        limit_s: float,
        every_s: float,
        lose: Callable[[str], None],
        is_gone: Callable[[], bool],
        end: Callable[[], None] | None = None,
    ) -> None:
        """lose: says why the coordinator counts as gone. is_gone: whether it does, for whatever reason."""
        self._silence, self._leaving = Silence(limit_s, 2 * every_s), Silence(EXIT_S, 2 * every_s)
        self._every_s, self._lose, self._is_gone = every_s, lose, is_gone
        self._end = end if end is not None else _exit
        self._closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="lifeline").start()

    def heard(self) -> None:
        self._silence.heard()

    def close(self) -> None:
        """This worker ends by itself."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._every_s):
            now = time.monotonic()
            if self._silence.look(now):
                self._lose(f"nothing was heard of the coordinator for {self._silence.limit_s:.0f} s")
            if not self._is_gone():
                self._leaving.heard()
            if self._leaving.look(now):
                self._end()
                return


def bound_sends(connection: socket.socket, limit_s: float) -> None:
    """A send to a host that vanished blocks once the buffers are full: let it fail after `limit_s`."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * limit_s))


def _exit() -> NoReturn:
    print(f"it did not end within {EXIT_S:.0f} s: the process is ended", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)

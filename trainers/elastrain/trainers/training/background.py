"""Threads that take what training leaves idle of the processor: their work is no less than a step's."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from elastrain.trainers.storage import open_storage

NICE = 10  # a tenth of a training thread; the lowest priority would wait for ever on a busy machine
WAKE_S = 5.0


def start(work: Callable[..., Any], *arguments: Any, name: str) -> threading.Thread:
    """A thread of low priority (on Linux; elsewhere as any other), which ends with the process."""

    def run() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # of this thread, on Linux
        work(*arguments)

    thread = threading.Thread(target=run, daemon=True, name=name)
    thread.start()
    return thread


def wake_storage() -> None:
    """Has the library under `Storage` start its threads, which inherit the priority of whoever uses it first:
    writing a checkpoint would otherwise take a core from training. To be called before any use."""
    start(open_storage("memory://").list, name="storage").join(WAKE_S)

"""A process that must not outlive the one that started it. Imports no torch: a worker's first lines."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """From now on the kernel ends this process with its parent's thread that started it.

    parent: the pid that the parent should have; unless given, it is whoever it is now, but not init.
    """
    expected = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected or (parent is None and expected == 1):
        os._exit(1)  # it died before the kernel knew

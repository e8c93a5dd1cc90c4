"""SIGTERM to a worker is a notice: it leaves at the next boundary, with nothing lost, and exits with code 0.

Before the worker is warm, SIGTERM ends it: there is nothing to hand over. Once it is warm, the first SIGTERM
tells the coordinator; later ones change nothing. A handler that the task's code installed before (while its
module was imported, or while model and datasets were made) is called as well, after ours: what it raises,
SystemExit too, is printed and goes no further. A handler that is installed later replaces ours, and then a
SIGTERM means what that handler makes of it. Processes that user code forks get the handler back that was
there before ours.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from types import FrameType

GRACE_S = 30.0  # what Kubernetes and Ray leave between SIGTERM and SIGKILL, unless told otherwise
GRACE = "ELASTRAIN_GRACE_S"  # set where workers run (a pod, a Ray node), if it is another time there, s


def grace_s() -> float:
    """How long after SIGTERM this process may go on. Raises ValueError."""
    text = os.environ.get(GRACE, "")
    try:
        seconds = float(text or GRACE_S)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ValueError(f"{GRACE} is {text!r}: give the seconds between SIGTERM and SIGKILL, for example 30")
    return seconds


def listen(tell: Callable[[float, str], None]) -> None:
    """From now on SIGTERM has `tell(grace_s, why)` called, once, in a thread. From the main thread only.

    Raises ValueError if the grace time is none.
    """
    grace = grace_s()
    heard: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may be interrupted by another one
    before = signal.getsignal(signal.SIGTERM)

    def on_signal(number: int, frame: FrameType | None) -> None:
        heard.put(None)
        if callable(before):
            try:
                before(number, frame)
            except BaseException:
                traceback.print_exc()

    def wait() -> None:
        heard.get()
        tell(grace, "SIGTERM")

    threading.Thread(target=wait, daemon=True, name="sigterm").start()
    signal.signal(signal.SIGTERM, on_signal)
    os.register_at_fork(after_in_child=lambda: _undo(on_signal, before))


def _undo(ours: object, before: object) -> None:
    if signal.getsignal(signal.SIGTERM) is ours:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)  # type: ignore[arg-type]

"""Whether a worker may write where its parts of checkpoints will go: tried at its start, in the background.

A store that refuses is said in the worker's log at once, and not only when its first checkpoint fails. The
worker trains all the same: keys are rotated while jobs run, and a store that is away comes back.
"""

from __future__ import annotations

import sys
import threading

from elastrain.trainers.launching.launcher import WorkerStart
from elastrain.trainers.storage import Storage, StorageError
from elastrain.trainers.training import background


def key(start: WorkerStart) -> str:
    return f"jobs/{start.job}/attempts/{start.attempt}/workers/{start.worker}"


def try_in_background(storage: Storage, start: WorkerStart) -> threading.Thread:
    """Returns at once."""
    return background.start(_try, storage, start, name="first put")


def _try(storage: Storage, start: WorkerStart) -> None:
    try:
        storage.put(key(start), b"ok", create_only=False)
    except StorageError as error:
        told = f"{start.worker} cannot write to the object storage, and so to no checkpoint"
        print(f"{told}: {error.message}", file=sys.stderr, flush=True)

"""What processes print, on its way from files on a node to storage, where it outlives the node.

A log is cut into segments `jobs/{job}/logs/{attempt}/{worker}/{offset}`: their names hold the byte at which
they begin, so together they are the file. Only (worker, offset, bytes) travels on to the service.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elastrain.trainers.storage import AlreadyExists, Storage, StorageError

log = logging.getLogger(__name__)

SHIP_EVERY_S = 1.0  # with a put of a second, a line is readable within 2 s
SEGMENT_BYTES = 1024 * 1024

Said = Callable[[str, int, int], None]  # worker, offset, bytes: this segment can be read now


@dataclass
class _Tail:
    path: Path
    offset: int = 0  # bytes that are in storage


class LogShipper:
    """Follows files and puts what is new into storage. Not thread-safe: one thread calls `ship`."""

    def __init__(self, storage: Storage, job: str, attempt: int, said: Said) -> None:
        self._storage = storage
        self._folder = f"jobs/{job}/logs/{attempt}"
        self._said = said
        self._tails: dict[str, _Tail] = {}

    def follow(self, worker: str, path: Path) -> None:
        """Begin with the file at its first byte; it may not exist yet."""
        self._tails[worker] = _Tail(path)

    def ship(self) -> bool:
        """Put what is new of every file; -> whether storage has it all. What fails is tried next time."""
        done = [self._ship_one(worker, tail) for worker, tail in self._tails.items()]
        return all(done)

    def forget(self, worker: str) -> int:
        """Ship the rest of an ended worker's file once more and close it; -> the bytes that did not go."""
        tail = self._tails.get(worker)
        if tail is None:
            return 0
        self._ship_one(worker, tail)
        del self._tails[worker]
        return _size(tail.path) - tail.offset

    def _ship_one(self, worker: str, tail: _Tail) -> bool:
        try:
            while tail.offset < _size(tail.path):
                self._put_segment(worker, tail)
        except (StorageError, OSError) as error:
            log.warning("the log of %s could not be stored at byte %d: %s", worker, tail.offset, error)
            return False
        return True

    def _put_segment(self, worker: str, tail: _Tail) -> None:
        with tail.path.open("rb") as file:
            file.seek(tail.offset)
            data = file.read(SEGMENT_BYTES)
        key = segment_key(self._folder, worker, tail.offset)
        size = len(data)
        try:
            self._storage.put(key, data)
        except AlreadyExists:  # our own, whose answer was lost; the file may have grown since
            size = self._storage.size(key)
        self._said(worker, tail.offset, size)
        tail.offset += size


def segment_key(folder: str, worker: str, offset: int) -> str:
    """The key of the segment that begins at byte `offset`."""
    return f"{folder}/{worker}/{offset:012d}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

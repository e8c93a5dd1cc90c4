"""Reading what an attempt's processes printed: pieces in object storage, found by rows of the store.

Keys are made from rows, never from what a caller wrote, so nobody reads another job's output or any file.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Any

from elastrain.service.clock import rfc3339
from elastrain.service.errors import Invalid, NotFound, Unavailable
from elastrain.service.jobs import ENDED
from elastrain.service.logtext import MAX_REST, lines_of, rest_length, text_of, unfinished_length
from elastrain.service.store import Store, feed, training
from elastrain.service.store.rows import JobRow, SegmentRow
from elastrain.trainers.storage import NotFound as NoObject
from elastrain.trainers.storage import Storage, StorageError

Json = dict[str, Any]
MAX_PAGE_BYTES = 4 * 1024 * 1024
# what `tail` looks through at most, however many lines were asked for
MAX_TAIL_BYTES = 8 * 1024 * 1024
CACHED_SEGMENTS = 16
LOST = b"[lost]"


class LogReader:
    """Thread-safe. Memory is bounded by a page and a few segments, whatever a log's size."""

    def __init__(self, store: Store, storage: Storage) -> None:
        self._store = store
        self._segments = _Segments(storage)

    def lines(
        self,
        job: JobRow,
        worker: str | None,
        attempt: int | None,
        offset: int | None,
        limit: int,
        tail: int | None,
        cursor: str | None,
    ) -> Json:
        """See Control.logs. Raises NotFound, Invalid, Unavailable."""
        if limit < 1 or (offset or 0) < 0 or (tail is not None and tail < 0):
            raise Invalid("limit is at least 1, offset and tail at least 0")
        if worker is None and offset is not None:
            raise Invalid("An offset is a place in one worker's log: name the worker, or use cursor")
        number = self._attempt(job, worker, attempt)
        if number is None:
            return _page([], next_offset=0 if worker else None)
        if tail is not None:
            return self._tail(job, number, worker, tail)
        limit = min(limit, MAX_PAGE_BYTES)
        if worker is None:
            return self._merged(job, number, _position(cursor), limit)
        return self._file(job, number, worker, offset or 0, limit)

    def raw(self, job: JobRow, worker: str, attempt: int | None, offset: int) -> tuple[int, Iterator[bytes]]:
        """See Control.log_bytes. Raises NotFound, Unavailable."""
        number = self._attempt(job, worker, attempt)
        if number is None:
            return 0, iter(())
        with self._store.read() as tx:
            end = feed.file_end(tx, job.id, number, worker)
            pieces = feed.file_segments(tx, job.id, number, worker, offset, end)
        size = sum(piece.bytes - max(0, offset - piece.offset) for piece in pieces)
        chunks = (self._segments.get(job.id, p)[max(0, offset - p.offset) :] for p in pieces)
        # a storage that is away is noticed before the answer
        return size, chain((next(chunks, b""),), chunks)

    def fill(self, job: str, rows: list[Json]) -> None:
        """Give the log rows of a feed page their text, and the offset where it begins."""
        for row in rows:
            if row["kind"] == "log":
                data = row["data"]
                segment = SegmentRow(
                    row["position"], data["attempt"], data["worker"], data["offset"], data.pop("bytes"), 0.0
                )
                start, text = self._segment_text(job, segment)
                data |= {"offset": start, "text": text_of(text)}

    # -- one worker's file, by offset

    def _file(self, job: JobRow, attempt: int, worker: str, offset: int, limit: int) -> Json:
        with self._store.read() as tx:
            size = feed.file_end(tx, job.id, attempt, worker)
            pieces = feed.file_segments(
                tx, job.id, attempt, worker, offset - MAX_REST, offset + limit + MAX_REST
            )
        run = _run(pieces, offset)
        if not run:
            return _page([], next_offset=max(offset, size) if not pieces else offset, size=size)
        first, last = run[0].offset, run[-1].offset + run[-1].bytes
        data = b"".join(self._segments.get(job.id, piece) for piece in run)
        offset = max(offset, first)
        end = min(offset + limit, last)
        begin = offset + rest_length(
            data[max(0, offset - first - MAX_REST) : offset - first], data[offset - first :]
        )
        end += rest_length(data[: end - first], data[end - first :])
        if end == size and not _final(job, attempt):
            end -= unfinished_length(data[: end - first])
        items = self._items(data[begin - first : max(begin, end) - first], begin, run)
        return _page(items, next_offset=max(end, offset), size=size, truncated=end < size)

    def _items(self, data: bytes, offset: int, run: list[SegmentRow]) -> list[Json]:
        items = []
        for start, line in lines_of(data, offset):
            segment = max((piece for piece in run if piece.offset <= start), key=lambda piece: piece.offset)
            items.append(_line(segment, start, line))
        return items

    # -- all workers, in the order in which their output came in

    def _merged(self, job: JobRow, attempt: int, after: int, limit: int) -> Json:
        items: list[Json] = []
        used, more = 0, True
        while used < limit and more:
            with self._store.read() as tx:
                pieces = feed.segments(tx, job.id, attempt=attempt, after=after, limit=20)
            more = len(pieces) == 20
            for piece in pieces:
                if used and used + piece.bytes > limit:
                    more, used = True, limit
                    break
                start, text = self._segment_text(job.id, piece)
                items += [_line(piece, at, line) for at, line in lines_of(text, start)]
                used, after = used + piece.bytes, piece.position
        return _page(items, next_cursor=str(after) if more else None, truncated=more)

    def _tail(self, job: JobRow, attempt: int, worker: str | None, count: int) -> Json:
        items: list[Json] = []
        used = 0
        with self._store.read() as tx:
            pieces = feed.segments(
                tx, job.id, attempt=attempt, worker=worker, newest_first=True, limit=10_000
            )
            size = None if worker is None else feed.file_end(tx, job.id, attempt, worker)
        for piece in pieces:
            if used >= MAX_TAIL_BYTES or _ends(items) > count:
                break
            start, text = self._segment_text(job.id, piece)
            items = _joined([_line(piece, at, line) for at, line in lines_of(text, start)], items)
            used += piece.bytes
        cut = len(items) > count or used < sum(piece.bytes for piece in pieces)
        return _page(items[-count:] if count else [], next_offset=size, size=size, truncated=cut)

    def _segment_text(self, job: str, segment: SegmentRow) -> tuple[int, bytes]:
        """(offset, bytes) of the characters that end in a segment: what follows it may not be here yet."""
        start = max(0, segment.offset - MAX_REST)
        with self._store.read() as tx:
            around = feed.file_segments(tx, job, segment.attempt, segment.worker, start, segment.offset)
        before = b""
        for piece in around:
            whole = piece.offset + piece.bytes == segment.offset or piece is not around[-1]
            before = (before + self._segments.get(job, piece))[-MAX_REST:] if whole else b""
        head = before[len(before) - unfinished_length(before) :]
        data = head + self._segments.get(job, segment)
        return segment.offset - len(head), data[: len(data) - unfinished_length(data)]

    def _attempt(self, job: JobRow, worker: str | None, attempt: int | None) -> int | None:
        """The attempt to read: the asked one, or the newest that has output. Raises NotFound."""
        with self._store.read() as tx:
            known = feed.logged_workers(tx, job.id)
            silent = {row["id"] for row in training.list_workers(tx, job.id, job.attempt)}
        fits = [number for number, name in known if worker in (None, name) and attempt in (None, number)]
        if fits:
            return max(fits)
        if attempt is not None and not 1 <= attempt <= max(1, job.attempt):
            raise NotFound(f"Job {job.id} has no attempt {attempt}; it has had {job.attempt}")
        if worker is not None and worker not in silent:  # a worker may have printed nothing yet
            names = ", ".join(sorted({name for _, name in known})) or "nobody yet"
            raise NotFound(f"Job {job.id} has no log of {worker[:63]!r}; there are logs of: {names}")
        return None


class _Segments:
    """The last few segments read. A segment never changes once it is listed."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def get(self, job: str, segment: SegmentRow) -> bytes:
        key = f"jobs/{job}/logs/{segment.attempt}/{segment.worker}/{segment.offset:012d}"
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        try:
            data = self._storage.get(key)[: segment.bytes]
        except NoObject:
            return _lost(segment.bytes)
        except StorageError as error:
            raise Unavailable(f"The object storage did not give a piece of the log: {error}") from error
        with self._lock:
            self._kept[key] = data
            while len(self._kept) > CACHED_SEGMENTS:
                self._kept.popitem(last=False)
        return data


def _run(pieces: list[SegmentRow], offset: int) -> list[SegmentRow]:
    """The pieces without a gap around `offset`, or the first ones behind it."""
    run: list[SegmentRow] = []
    for piece in pieces:
        if run and run[-1].offset + run[-1].bytes != piece.offset:
            if run[-1].offset + run[-1].bytes > offset:
                return run
            run = []
        run.append(piece)
    return run if run and run[-1].offset + run[-1].bytes > offset else []


def _lost(size: int) -> bytes:
    """What stands for a segment that is gone: as long as it was, so that the offsets behind it hold."""
    return LOST.ljust(size, b".")[: size - 1] + b"\n"


def _final(job: JobRow, attempt: int) -> bool:
    return job.status in ENDED or attempt != job.attempt


def _line(segment: SegmentRow, offset: int, line: bytes) -> Json:
    text = {"worker": segment.worker, "attempt": segment.attempt, "text": text_of(line)}
    return {"offset": offset, "at": rfc3339(segment.at), **text}


def _joined(earlier: list[Json], later: list[Json]) -> list[Json]:
    """Two runs of lines; a line that was cut between two segments of one worker becomes whole."""
    if earlier and not earlier[-1]["text"].endswith("\n"):
        cut = earlier[-1]
        for place, item in enumerate(later):
            if item["worker"] == cut["worker"]:
                whole = {**cut, "text": cut["text"] + item["text"]}
                return [*earlier[:-1], *later[:place], whole, *later[place + 1 :]]
    return earlier + later


def _ends(items: list[Json]) -> int:
    return sum(1 for item in items if item["text"].endswith("\n"))


def _position(cursor: str | None) -> int:
    if cursor and not re.fullmatch("[0-9]{1,18}", cursor):
        raise Invalid(f"{cursor[:40]!r} is no cursor; take next_cursor of the page before")
    return int(cursor or 0)


def _page(
    items: list[Json],
    *,
    next_offset: int | None = None,
    next_cursor: str | None = None,
    size: int | None = None,
    truncated: bool = False,
) -> Json:
    page = {"items": items, "next_offset": next_offset, "next_cursor": next_cursor}
    return {**page, "size": size, "truncated": truncated}

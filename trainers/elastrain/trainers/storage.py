"""Objects in a local directory or a bucket, behind nine verbs.

One protocol on top of obstore, so that a directory, S3, GCS and Azure run the same code. Keys are relative to
the URL that was opened, their segments are split by `/` and taken literally: a bracket, a star or a space in
a key is just a character. A put is one move: a reader sees the whole object or none, and `create_only` lets
exactly one writer win, which is what fences attempts, outcomes and manifests.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast
from urllib.parse import unquote, urlsplit

import obstore.exceptions
from obstore.store import LocalStore, MemoryStore, from_url

from elastrain.trainers.credentials import credentials_file, key_id

T = TypeVar("T")

SINGLE_PUT_BYTES = 4 * 1024**3  # buckets take at most 5 GiB in one request, and only that can be conditional
STREAM_BYTES = 4 * 1024**2


class StorageError(Exception):
    """The store could not do it; `kind` says why: missing_bucket, denied, full, bad_key, bad_url or
    unavailable."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class NotFound(StorageError):
    """There is no object under this key."""

    def __init__(self, message: str) -> None:
        super().__init__("not_found", message)


class AlreadyExists(StorageError):
    """Somebody wrote this key before, and the put was create-only: the first writer wins."""

    def __init__(self, message: str) -> None:
        super().__init__("already_exists", message)


@dataclass(frozen=True)
class Entry:
    """One listed object: its key, relative to the opened URL, and its size in bytes."""

    key: str
    size: int


class Storage(Protocol):
    """What the product needs of an object store. Every verb may raise StorageError."""

    url: str

    def put(self, key: str, data: bytes | memoryview | Path, *, create_only: bool = True) -> None:
        """Write a whole object in one move. Raises AlreadyExists if create-only and the key is taken."""

    def get(self, key: str) -> bytes:
        """The whole object. Raises NotFound."""

    def stream(self, key: str, start: int = 0) -> Iterator[bytes]:
        """The object from byte `start` on, in pieces of a few MiB. Raises NotFound before the first piece."""

    def size(self, key: str) -> int:
        """Bytes of the object. Raises NotFound."""

    def check(self) -> None:
        """Whether the store answers; changes nothing. Raises StorageError, with its kind.

        A put would not tell: some servers make a bucket that is missing.
        """

    def list(self, prefix: str = "") -> list[Entry]:
        """Every object below the folder `prefix`, at any depth, sorted by key."""

    def delete(self, key: str) -> None:
        """Remove the object; it is no error if there is none."""

    def move(self, src: str, dst: str) -> None:
        """Rename an object: one move in a directory, copy then delete in a bucket. Raises NotFound."""

    def download(self, key: str, path: Path) -> None:
        """Write the object to a local file, which appears only when it is whole. Raises NotFound."""


def open_storage(url: str, options: Mapping[str, str] | None = None, *, brief: bool = False) -> Storage:
    """Open `file:///folder`, `s3://bucket/prefix`, `gs://`, `az://` or `memory://` (this object only).

    options: the store's own names, such as endpoint, region, access_key_id. A local folder is made if it is
    missing; a bucket never is. brief: for small objects and a caller that has other things to do; a bucket
    that does not answer is given up after seconds instead of a minute. Raises StorageError(bad_url) for a URL
    that cannot be used.
    """
    scheme = urlsplit(url).scheme
    try:
        if scheme == "file":
            return _Objects(url, LocalStore(_local_folder(url), mkdir=True))
        if scheme == "memory":
            return _Objects(url, MemoryStore())
        whose = (lambda: key_id(options or {})) if scheme == "s3" else None
        return _Objects(url, _open_bucket(url, options or {}, brief), whose)
    except (ValueError, OSError, obstore.exceptions.BaseError) as error:
        raise StorageError("bad_url", f"cannot open the storage {url!r}: {_first_line(error)}") from error


def _local_folder(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"a local folder has three slashes, as in file:///{parts.netloc}{parts.path}")
    # `?` and `#` are legal in a folder's name, so only the scheme is cut off
    folder = Path(unquote(url.removeprefix("file://").removeprefix("localhost")))
    if not folder.is_absolute():
        raise ValueError("the folder must be absolute, as in file:///var/lib/elastrain")
    return folder


def _open_bucket(url: str, options: Mapping[str, str], brief: bool) -> Any:
    plaintext = options.get("endpoint", "").startswith("http://")
    file = credentials_file(options, os.environ) if url.startswith("s3:") else None
    return cast(Any, from_url)(  # typed per scheme, which is known only now
        url,
        config=dict(options) or None,
        client_options={"timeout": "5s" if brief else "60s", **({"allow_http": True} if plaintext else {})},
        retry_config={
            "max_retries": 1 if brief else 6,
            "retry_timeout": timedelta(seconds=5 if brief else 60),
        },
        **({"credential_provider": file} if file is not None else {}),
    )


class _Objects:
    """Storage on any obstore store."""

    def __init__(self, url: str, store: Any, whose: Callable[[], str | None] | None = None) -> None:
        """whose: the id of the key that is in use, for messages."""
        self.url = url
        self._store = store
        self._whose = whose or (lambda: None)

    def put(self, key: str, data: bytes | memoryview | Path, *, create_only: bool = True) -> None:
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        if not create_only or size <= SINGLE_PUT_BYTES:
            mode = "create" if create_only else "overwrite"
            self._do(key, lambda: self._store.put(key, data, mode=mode))
        elif self._exists(key):
            raise AlreadyExists(f"{key} in {self.url} was written before")
        else:  # too large for a conditional request; such objects carry a nonce in their name
            self._do(key, lambda: self._store.put(key, data, mode="overwrite"))

    def get(self, key: str) -> bytes:
        return self._do(key, lambda: bytes(self._store.get(key).bytes()))

    def stream(self, key: str, start: int = 0) -> Iterator[bytes]:
        if start >= self.size(key):
            return iter(())
        options = {"range": {"offset": start}} if start else None
        pieces = self._do(key, lambda: self._store.get(key, options=options).stream(STREAM_BYTES))
        return self._pieces(key, iter(pieces))

    def size(self, key: str) -> int:
        return self._do(key, lambda: int(self._store.head(key)["size"]))

    def check(self) -> None:
        try:
            self.get("readyz/there-is-no-such-object")
        except NotFound:
            return

    def list(self, prefix: str = "") -> list[Entry]:
        folder = prefix.rstrip("/")  # the store lists whole segments, so "run1" never finds "run10/…"
        pages = self._do(folder or "list", lambda: list(self._store.list(folder or None)))
        found = [entry for page in pages for entry in page]
        return sorted((Entry(e["path"], int(e["size"])) for e in found), key=lambda entry: entry.key)

    def delete(self, key: str) -> None:
        try:
            self._do(key, lambda: self._store.delete(key))
        except NotFound:
            pass

    def move(self, src: str, dst: str) -> None:
        _check_key(dst)
        self._do(src, lambda: self._store.rename(src, dst, overwrite=True))

    def download(self, key: str, path: Path) -> None:
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            for piece in self.stream(key):
                file.write(piece)
        partial.replace(path)

    def _exists(self, key: str) -> bool:
        try:
            self.size(key)
        except NotFound:
            return False
        return True

    def _pieces(self, key: str, pieces: Iterator[Any]) -> Iterator[bytes]:
        while (piece := self._do(key, lambda: next(pieces, None))) is not None:
            yield bytes(piece)

    def _do(self, key: str, act: Callable[[], T]) -> T:
        """Run one verb and turn the store's errors into ours, naming key and store."""
        _check_key(key)
        try:
            return act()
        except (ValueError, OSError, obstore.exceptions.BaseError) as error:
            raise _translated(error, key, self.url, self._whose) from error


def _check_key(key: str) -> None:
    if not key or key.startswith("/") or key.endswith("/") or "\0" in key:
        raise StorageError("bad_key", f"{key!r} is no key: it must be relative and not end in a slash")


def _translated(error: Exception, key: str, url: str, whose: Callable[[], str | None]) -> StorageError:
    text = str(error)
    where = f"{key!r} in {url}"
    if isinstance(error, obstore.exceptions.AlreadyExistsError | FileExistsError):
        return AlreadyExists(f"{where} was written before")
    if "NoSuchBucket" in text:
        bucket = urlsplit(url).netloc
        return StorageError(
            "missing_bucket", f"the bucket {bucket!r} does not exist: make it or correct {url}"
        )
    if isinstance(error, FileNotFoundError):
        return NotFound(f"there is no object {where}")
    if isinstance(error, (PermissionError, *_DENIED)) or _DENIED_TEXT.search(text):
        key_id = whose()
        by = f" to the key {key_id}" if key_id else ""
        return StorageError("denied", f"access to {where} was denied{by}: {_said(error)}")
    if getattr(error, "errno", None) in _FULL or _FULL_TEXT.search(text):
        return StorageError("full", f"{where} could not be written: {_fullness(url)}")
    if isinstance(error, ValueError) and not isinstance(error, obstore.exceptions.BaseError):
        return StorageError("bad_key", f"{key!r} cannot be a key: {_first_line(error)}")
    return StorageError("unavailable", f"{where} could not be reached: {_said(error)}")


_DENIED = (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError)
# a listing that is refused has no kind of its own; AWS answers 400 to a token that has expired
_DENIED_TEXT = re.compile(r"status code: 40[13]|ExpiredToken|InvalidAccessKeyId|RequestExpired")


_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXT = re.compile(r"No space left on device|Disk quota exceeded|InsufficientStorage|QuotaExceeded")


def _fullness(url: str) -> str:
    """Which disk it is, with its size, where that can be known."""
    try:
        folder = _local_folder(url)
        disk = shutil.disk_usage(folder)
    except (ValueError, OSError):
        return "the store is full; make room in it"
    used, total = (f"{amount / 2**20:.0f} MiB" for amount in (disk.total - disk.free, disk.total))
    return f"the disk of {folder} is full ({used} of {total} used); make room on it"


def _said(error: Exception) -> str:
    """What the server said, short: its own code and sentence, else the client's first line without the time
    that it took, so that the same trouble reads the same twice."""
    text = str(error)
    code, sentence = (re.search(f"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message"))
    if code:
        return f"{code[1]}, {sentence[1]}" if sentence else code[1]
    return re.sub(r" in [0-9.]+(ns|µs|ms|s)\b", "", _first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]

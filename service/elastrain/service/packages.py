"""Uploaded code: zip files named by the sha256 of their bytes, checked before anybody can use them."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from types import TracebackType

from elastrain.service import zipcheck
from elastrain.service.auth import Actor
from elastrain.service.clock import Clock
from elastrain.service.errors import Forbidden, Invalid, TooLarge, Unavailable
from elastrain.service.settings import Settings
from elastrain.service.store import Store, uploads
from elastrain.trainers.storage import AlreadyExists, Storage, StorageError

SHA256 = re.compile(r"[0-9a-f]{64}")


class Packages:
    def __init__(self, store: Store, storage: Storage, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._storage = storage
        self._limit = settings.package_max_bytes
        self._clock = clock

    def has(self, sha256: str, actor: Actor, project: str) -> bool:
        if not actor.sees(project):
            return False
        with self._store.read() as tx:
            return uploads.has_package(tx, sha256, project)

    def upload(self, sha256: str, actor: Actor, project: str, declared_bytes: int | None) -> PackageUpload:
        """Raises Invalid, Forbidden, and TooLarge at once if the declared size is over the limit."""
        actor.must("member", "upload code")
        if not actor.sees(project):
            raise Forbidden(f"{actor.name!r} belongs to the project {actor.project!r}, not to {project!r}")
        if not SHA256.fullmatch(sha256):
            raise Invalid(f"{sha256[:80]!r} is no sha256: 64 digits 0-9a-f")
        if declared_bytes is not None and declared_bytes > self._limit:
            raise too_large(declared_bytes, self._limit, [])
        return PackageUpload(self, sha256, project, self._limit)

    def keep(self, sha256: str, project: str, file: Path, size: int) -> bool:
        """Storage first, then the row that makes it real. False if the project had it."""
        try:
            self._storage.put(f"packages/{sha256}.zip", file)
        except AlreadyExists:
            pass  # another project's, or an upload that was cut short before its row: the bytes are the same
        except StorageError as error:
            raise Unavailable(f"The object storage did not take the package: {error}") from error
        with self._store.write() as tx:
            return uploads.add_package(tx, sha256, project, size, self._clock.now())


class PackageUpload:
    """Takes the bytes as they come; memory stays flat, and nothing is left of an upload that fails.

    Use as a context manager: write(chunk)..., then finish().
    """

    def __init__(self, packages: Packages, sha256: str, project: str, limit: int) -> None:
        self._packages = packages
        self._sha256 = sha256
        self._project = project
        self._limit = limit
        self._digest = hashlib.sha256()
        self._size = 0
        self._file = tempfile.NamedTemporaryFile(prefix="elastrain-upload-", suffix=".zip")  # noqa: SIM115

    def __enter__(self) -> PackageUpload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, chunk: bytes) -> None:
        """Raises TooLarge as soon as the limit is passed, naming the largest files seen so far."""
        self._size += len(chunk)
        if self._size > self._limit:
            self._file.flush()
            raise too_large(self._size, self._limit, zipcheck.largest_so_far(Path(self._file.name)))
        self._digest.update(chunk)
        self._file.write(chunk)

    def finish(self) -> bool:
        """Check it and store it for the workers; False if the project had it. Raises Invalid, TooLarge."""
        self._file.flush()
        found = self._digest.hexdigest()
        if found != self._sha256:
            raise Invalid(f"The body's sha256 is {found}, its name says {self._sha256}: upload it again")
        zipcheck.check(Path(self._file.name), self._size)
        return self._packages.keep(self._sha256, self._project, Path(self._file.name), self._size)


def too_large(size: int, limit: int, largest: list[tuple[str, int]]) -> TooLarge:
    named = ", ".join(f"{name} ({bytes} bytes)" for name, bytes in largest)
    detail = f"The package has {size} bytes or more, the limit is {limit}"
    return TooLarge(
        detail + (f"; the largest files: {named}" if named else ""),
        hint="Leave data and build results out, for example with an .elastrainignore file.",
        extra={"limit": limit, "size": size, "largest": [{"path": p, "bytes": n} for p, n in largest]},
    )

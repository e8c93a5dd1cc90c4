"""The user's own code on a node: fetched by digest, checked, unpacked once, imported before everything else.

A package is a zip in storage named after the sha256 of its bytes. A node unpacks it into a folder of the same
name: first beside it, then one rename, so that of several workers that start at once each sees all or none.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from elastrain.trainers.storage import NotFound, Storage

UNPACKED_LIMIT_BYTES = 4 * 1024**3
FILES_LIMIT = 100_000

UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, UnicodeError),
    *(FileExistsError, NotADirectoryError, IsADirectoryError),  # a name twice, or a file used as a folder
)


class BadPackage(Exception):
    """The package is not what its name says, or must not be unpacked. The message says why."""


def package_key(sha256: str) -> str:
    """Where a package lies in storage."""
    return f"packages/{sha256}.zip"


def cache_folder() -> Path:
    """This user's folder for packages on this node, closed to others. Raises BadPackage if it is not."""
    folder = Path(tempfile.gettempdir()) / f"elastrain-packages-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise BadPackage(f"{folder} is open to others on this node: remove it, its code cannot be trusted")
    return folder


def install(storage: Storage, sha256: str) -> None:
    """Make the package's modules importable in this process. Raises BadPackage or StorageError."""
    activate(fetch(storage, sha256, cache_folder()))


def fetch(storage: Storage, sha256: str, cache: Path) -> Path:
    """The folder with the unpacked package; fetches and unpacks it unless the node has it.

    Raises BadPackage, or StorageError if the storage cannot be reached.
    """
    ready = cache / sha256
    if ready.is_dir():
        return ready
    with tempfile.TemporaryDirectory(prefix=f".{sha256[:12]}-", dir=cache) as scratch:
        archive = Path(scratch) / "package.zip"
        try:
            storage.download(package_key(sha256), archive)
        except NotFound as error:
            raise BadPackage(f"the code package {sha256} is not in storage: submit the job again") from error
        _check_digest(archive, sha256)
        unpacked = Path(scratch) / "package"
        unpack(archive, unpacked)
        try:
            unpacked.rename(ready)
        except OSError:
            if not ready.is_dir():  # else another worker of this node was first, with the same bytes
                raise
    return ready


def activate(folder: Path) -> None:
    """Let the package's modules be found before any others, also in processes that this one spawns.

    What Python itself, elastrain and its libraries have imported already stays; a user's `api`, `service` or
    `trainers` is none of that, and wins over folders of these names elsewhere on the path.
    """
    path = str(folder)
    sys.path[:] = [path, *(entry for entry in sys.path if entry != path)]
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = path + (os.pathsep + inherited if inherited else "")
    importlib.invalidate_caches()


def unpack(archive: Path, target: Path) -> None:
    """Unpack files and folders only, and nothing outside `target`. Raises BadPackage, halfway if need be."""
    target.mkdir()
    try:
        with zipfile.ZipFile(archive) as package:
            members = package.infolist()
            _check_size(members)
            for member in members:
                _unpack_one(package, member, target)
    except UNREADABLE as error:
        raise BadPackage(f"the code package cannot be unpacked: {error}") from error


def _check_digest(archive: Path, sha256: str) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise BadPackage(
            f"the code package has checksum {found}, it should be {sha256}: submit the job again"
        )


def _check_size(members: list[zipfile.ZipInfo]) -> None:
    size = sum(member.file_size for member in members)
    if size > UNPACKED_LIMIT_BYTES or len(members) > FILES_LIMIT:
        raise BadPackage(
            f"the code package unpacks to {len(members)} files and {size} bytes; "
            f"at most {FILES_LIMIT} files and {UNPACKED_LIMIT_BYTES} bytes are allowed"
        )


def _unpack_one(package: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    name = PurePosixPath(member.filename)
    mode = member.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if name.is_absolute() or ".." in name.parts or "\\" in member.filename or not name.parts:
        raise BadPackage(f"the code package holds the path {member.filename!r}, which leads out of it")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadPackage(f"the code package holds {member.filename!r}, which is neither a file nor a folder")
    path = target / name
    if member.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with package.open(member) as source, path.open("xb") as file:  # zipfile checks size and checksum
        shutil.copyfileobj(source, file, 1024 * 1024)
    if mode & 0o100:
        path.chmod(0o755)

"""A working directory as a package: a zip whose bytes depend on the files alone, not on clocks or users."""

import fnmatch
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from elastrain.client.errors import FixRequest

MAX_BYTES = 256 * 2**20  # the service's default limit; it says its own when that is lower
WARN_AT = 0.5  # of the limit: better told now than refused on a later day
IGNORE_FILE = ".elastrainignore"
# never wanted on a worker: history, environments, caches
ALWAYS = (
    ".git",
    ".hg",
    ".svn",
    "__pycache__",
    "node_modules",
    ".venv",
    "venv",
    ".tox",
    ".nox",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".DS_Store",
    "*.pyc",
    "*.egg-info",
)
EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's earliest time: the clock must not change the digest


@dataclass(frozen=True)
class Package:
    """A zip file on disk (`file`), its size in bytes, its sha256, and the largest files in it."""

    file: IO[bytes]
    size: int
    sha256: str
    largest: tuple[tuple[str, int], ...]

    def chunks(self) -> Iterator[bytes]:
        """The bytes from the start, for one upload."""
        self.file.seek(0)
        while chunk := self.file.read(2**20):
            yield chunk

    def warning(self, max_bytes: int = MAX_BYTES) -> str | None:
        """What to know about its size before it is too large; None while it is small."""
        if self.size <= WARN_AT * max_bytes:
            return None
        biggest = ", ".join(f"{name} ({mib(size)})" for name, size in self.largest)
        return (
            f"The package has {mib(self.size)}, the limit is {mib(max_bytes)}. Largest: {biggest}. "
            f"List what the workers do not need in {IGNORE_FILE}."
        )

    def __enter__(self) -> "Package":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def pack(folder: Path, max_bytes: int = MAX_BYTES) -> Package:
    """Packs `folder`. Raises FixRequest if it is no folder, is empty, or exceeds `max_bytes` as a zip."""
    if not folder.is_dir():
        raise FixRequest(f"The working directory {folder} is not a folder.")
    files = sorted(wanted(folder), key=lambda path: path.relative_to(folder).as_posix())
    if not files:
        raise FixRequest(f"The working directory {folder} holds no files that would be uploaded.")
    out = tempfile.TemporaryFile()  # noqa: SIM115 - it is the result, and gone when that is closed
    try:
        largest = _write(out, folder, files, max_bytes)
        size = out.tell()
        out.seek(0)
        digest = hashlib.file_digest(out, "sha256").hexdigest()
    except BaseException:
        out.close()
        raise
    return Package(out, size, digest, tuple(largest[:5]))


def _write(out: IO[bytes], folder: Path, files: list[Path], max_bytes: int) -> list[tuple[str, int]]:
    """Writes the zip; returns (name, packed bytes), largest first. Raises FixRequest once it is too large."""
    packed = []
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in files:
            name = path.relative_to(folder).as_posix()
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if os.access(path, os.X_OK) else 0o644) << 16
            with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                while chunk := source.read(2**20):
                    target.write(chunk)
            packed.append((name, archive.getinfo(name).compress_size))
            if out.tell() > max_bytes:
                raise too_large(folder, files, max_bytes)
    return sorted(packed, key=lambda item: (-item[1], item[0]))


def too_large(folder: Path, files: list[Path], max_bytes: int) -> FixRequest:
    """Both numbers and what fills it."""
    sizes = sorted(
        ((path.stat().st_size, path.relative_to(folder).as_posix()) for path in files), reverse=True
    )
    total = sum(size for size, _ in sizes)
    biggest = ", ".join(f"{name} ({mib(size)})" for size, name in sizes[:5])
    return FixRequest(
        f"The working directory {folder} is too large to upload: {mib(total)} in {len(files)} files, "
        f"the package limit is {mib(max_bytes)}. Largest: {biggest}.",
        {"hint": f"List what the workers do not need in {IGNORE_FILE}; put data into object storage."},
    )


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def wanted(folder: Path) -> Iterator[Path]:
    """The files to upload, depth first. Links are followed to files inside `folder` only."""
    patterns = (*ALWAYS, *ignore_patterns(folder))
    inside = folder.resolve()
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if not ignored(here / name, folder, patterns) and not (here / name / "pyvenv.cfg").exists()
        )
        for name in names:
            path = here / name
            if ignored(path, folder, patterns) or not path.is_file():
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise FixRequest(
                    f"{path} is a link to {path.resolve()}, outside the working directory: "
                    f"copy the file or list it in {IGNORE_FILE}."
                )
            yield path


def ignore_patterns(folder: Path) -> tuple[str, ...]:
    """The lines of .elastrainignore: one pattern each, `#` for comments."""
    try:
        lines = (folder / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def ignored(path: Path, folder: Path, patterns: tuple[str, ...]) -> bool:
    """As in .gitignore: a pattern without a slash fits a name anywhere, one with a slash the whole path."""
    name = PurePosixPath(path.relative_to(folder).as_posix())
    for pattern in patterns:
        bare = pattern.rstrip("/")
        if pattern.endswith("/") and not path.is_dir():
            continue
        if "/" in bare:
            if fnmatch.fnmatchcase(str(name), bare.lstrip("/")):
                return True
        elif fnmatch.fnmatchcase(name.name, bare):
            return True
    return False

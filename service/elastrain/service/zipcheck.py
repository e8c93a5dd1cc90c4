"""Whether a zip may be unpacked on a worker: no paths that lead out, no links, no bomb. Never extracts."""

from __future__ import annotations

import lzma
import stat
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from elastrain.service.errors import Invalid, TooLarge

MAX_UNPACKED_BYTES = 4 * 1024**3
MAX_FILES = 100_000
# beyond this a file is a bomb, not code; small files may compress as well as they like
MAX_RATIO = 200
RATIO_MATTERS_BYTES = 1024 * 1024
# what zipfile and the decompressors below it raise for bytes that somebody made up
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    IndexError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


def check(path: Path, size: int) -> None:
    """Raises Invalid with what is wrong and where, TooLarge if it unpacks to too much."""
    try:
        with zipfile.ZipFile(path) as package:
            members = package.infolist()
            for member in members:
                _check_member(member)
            _check_total(members, size)
            _check_contents(package, members)
    except BROKEN as error:
        raise Invalid(f"The body is not a good zip file: {error or type(error).__name__}") from None


def largest_so_far(path: Path, count: int = 5) -> list[tuple[str, int]]:
    """(path, compressed bytes) of the largest entries in the beginning of a zip whose end is not there."""
    found: list[tuple[str, int]] = []
    with path.open("rb") as file:
        while len(header := file.read(_LOCAL_HEADER.size)) == _LOCAL_HEADER.size:
            magic, _, flags, _, _, _, _, packed, _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
            if magic != b"PK\x03\x04" or flags & 0x08:  # sizes come after the data: cannot be walked
                break
            name = file.read(name_bytes).decode("utf-8", "replace")
            file.seek(extra_bytes + packed, 1)
            found.append((name, packed))
    return sorted(found, key=lambda entry: -entry[1])[:count]


def _check_member(member: zipfile.ZipInfo) -> None:
    shown = member.filename[:200]
    name = PurePosixPath(member.filename)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if name.is_absolute() or ".." in name.parts or "\\" in member.filename or not name.parts:
        raise Invalid(f"The package holds the path {shown!r}, which leads out of it")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise Invalid(f"The package holds {shown!r}, which is neither a file nor a folder: leave links out")
    if member.flag_bits & 0x1:
        raise Invalid(f"The package holds {shown!r}, which is encrypted")
    if member.file_size > RATIO_MATTERS_BYTES and member.file_size > MAX_RATIO * max(1, member.compress_size):
        ratio = member.file_size // max(1, member.compress_size)
        raise Invalid(f"{shown!r} unpacks to {ratio} times its size; at most {MAX_RATIO} times is allowed")


def _check_total(members: list[zipfile.ZipInfo], size: int) -> None:
    unpacked = sum(member.file_size for member in members)
    if unpacked > MAX_UNPACKED_BYTES or len(members) > MAX_FILES:
        raise TooLarge(
            f"The package ({size} bytes) unpacks to {unpacked} bytes in {len(members)} files; "
            f"at most {MAX_UNPACKED_BYTES} bytes in {MAX_FILES} files are allowed",
            extra={"limit": MAX_UNPACKED_BYTES, "size": unpacked},
        )


def _check_contents(package: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> None:
    """Sizes in a zip's directory are claims: read every member, no further than it claims."""
    for member in members:
        with package.open(member) as file:
            while file.read(1024 * 1024):  # zipfile stops at the claimed size and then checks the checksum
                pass

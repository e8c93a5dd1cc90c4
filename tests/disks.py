"""A disk of a size of the test's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size ("1m") in an empty folder. Skips where none can be made."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    made = subprocess.run(mount, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"a small disk cannot be made here: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)

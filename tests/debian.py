"""A program from a Debian package, for tests that need it: the machine's own, or one fetched for this run.

Nothing is installed, and nobody has to be root: the package is downloaded and unpacked into a folder.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

FETCH_S = 180


def program(name: str, package: str) -> str:
    """Its path. Skips the test where neither the program nor its package can be had, and says why."""
    path = shutil.which(name)
    if path is None:
        path, why = _fetched(name, package)
        if path is None:
            pytest.skip(f"{name} is not here (Debian: `apt-get install {package}`), nor to be had: {why}")
    return path


@cache
def _fetched(name: str, package: str) -> tuple[str | None, str]:
    """(its path or None, what went wrong)"""
    folder = Path(tempfile.mkdtemp(prefix="elastrain-debian-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    fetch = f"apt-get download -qq {package}"
    # a fresh machine knows no packages before its lists are there, which only root may fetch
    script = f"{fetch} || {{ apt-get update -qq && {fetch}; }} && dpkg-deb -x ./*.deb ."
    try:
        done = subprocess.run(
            ["sh", "-c", script], cwd=folder, capture_output=True, text=True, timeout=FETCH_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        return None, str(error)
    if done.returncode != 0:
        return None, done.stderr.strip()[-300:]
    found = next((path for path in folder.rglob(name) if path.is_file()), None)
    return (str(found), "") if found else (None, f"{package} holds no {name}")

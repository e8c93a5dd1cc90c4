"""The two images, built once per run, and a volume for a container."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from containers import build


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """The service's."""
    yield from build("service")


@pytest.fixture(scope="session")
def ray_image() -> Iterator[str]:
    """The one of Ray's head and workers, with torch for the CPU."""
    yield from build("ray")


@pytest.fixture
def home() -> Iterator[Path]:
    """A volume that everybody may write."""
    with tempfile.TemporaryDirectory(prefix="elastrain-image-") as folder:
        path = Path(folder)
        path.chmod(0o777)
        yield path

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databases import BOTH
from world import World


@pytest.fixture
def world(tmp_path: Path, database: Callable[[], str | None]) -> Iterator[World]:
    made = World(tmp_path, database=database())
    yield made
    made.store.close()


@pytest.fixture(params=BOTH)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'deep' / 'fresh.db'}"
        return
    server = request.getfixturevalue("postgres")
    url = server.empty()
    yield url
    server.drop(url)

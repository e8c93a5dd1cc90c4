from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from world import World


@pytest.fixture
def world(tmp_path: Path, database: Callable[[], str | None]) -> Iterator[World]:
    made = World(tmp_path, database=database())
    yield made
    made.store.close()

"""What all tests share."""

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

import buckets
import databases
from mlflow_server import Mlflow

# A busy machine makes an example slow without making it wrong, so only the test's own timeout counts. A test
# fails for everybody or for nobody: HYPOTHESIS_PROFILE=new tries other examples than everybody's.
settings.register_profile("elastrain", deadline=None, derandomize=True)
settings.register_profile("new", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "elastrain"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[databases.Postgres]:
    """The session's PostgreSQL; whoever stops it starts it again."""
    with databases.running() as server:
        if server is None:
            pytest.skip(databases.MISSING)
        yield server


@pytest.fixture(scope="session")
def seaweed() -> Iterator[buckets.Seaweed]:
    """The session's S3 server."""
    with buckets.running() as server:
        if server is None:
            pytest.skip(buckets.MISSING)
        yield server


@pytest.fixture
def door(seaweed: buckets.Seaweed) -> Iterator[buckets.Door]:
    """A way to the S3 server that fails when it is told to."""
    made = buckets.Door(seaweed.url)
    yield made
    made.close()


@pytest.fixture(params=databases.BOTH)
def database(request: pytest.FixtureRequest) -> Iterator[Callable[[], str | None]]:
    """Makes databases with all tables; None stands for a file of the world's own."""
    if request.param == "sqlite":
        yield lambda: None
        return
    server, made = request.getfixturevalue("postgres"), list[str]()

    def fresh() -> str:
        made.append(server.fresh())
        return made[-1]

    yield fresh
    for url in made:
        server.drop(url)


@pytest.fixture
def mlflow() -> Iterator[Mlflow]:
    """A tracking server of the test's own."""
    made = Mlflow()
    yield made
    made.close()

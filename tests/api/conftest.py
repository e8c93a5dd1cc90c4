"""A real service in this process: store, a folder for objects, uvicorn in a thread. Only Ray is absent."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from elastrain.client import Client
from elastrain.service.control import Control
from elastrain.service.migrations import migrate
from elastrain.service.settings import Settings
from elastrain.service.store import Store
from elastrain.trainers.storage import Storage, open_storage
from serving import SPEC, Life, Live


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage((tmp_path / "objects").as_uri())


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database to copy: migrating takes longer than most tests."""
    path = tmp_path_factory.mktemp("store") / "empty.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def control(
    tmp_path: Path, storage: Storage, empty_database: Path, database: Callable[[], str | None]
) -> Iterator[Control]:
    env = {"ELASTRAIN_HOME": str(tmp_path), "ELASTRAIN_DATABASE_URL": database() or ""}
    settings = Settings.from_env(env)
    shutil.copy(empty_database, tmp_path / "elastrain.db")
    store = Store(settings.database_url)
    yield Control(store, storage, settings, ping_ray=lambda: "2.60.0")
    store.close()


@pytest.fixture
def token(control: Control, tmp_path: Path) -> str:
    return control.auth.ensure_admin_token(tmp_path / "token")


@pytest.fixture
def live(control: Control) -> Iterator[Live]:
    running = Live(control)
    yield running
    running.stop()


@pytest.fixture
def http(live: Live, token: str) -> Iterator[httpx.Client]:
    """Plain HTTP with the admin's token."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=live.url, headers=headers, trust_env=False, timeout=60) as made:
        yield made


@pytest.fixture
def client(live: Live, token: str) -> Iterator[Client]:
    with Client(live.url, token) as made:
        yield made


@pytest.fixture
def life(client: Client, control: Control, storage: Storage) -> Life:
    """A submitted job, still queued."""
    return Life(control, storage, client.submit(SPEC).id)

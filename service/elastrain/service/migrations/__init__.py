"""Migrations of the store: part of the package, run by the service at its start and by `elastrain migrate`.

`migrate(url)` brings a database, also an empty one, to the newest revision. Several processes may do so at
once: one migrates, the others wait for its lock and find nothing to do. Who finds the newest revision there
takes no lock, so a start does not wait for other starts.
"""

from __future__ import annotations

import threading

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from elastrain.service.settings import SettingsError
from elastrain.service.store.engine import open_engine
from elastrain.service.store.reached import NoDatabase, reached, readable

SCRIPTS = "elastrain.service:migrations"
# alembic keeps what it works on in module globals
_one_at_a_time = threading.Lock()


def migrate(url: str) -> tuple[str | None, str | None]:
    """Up to the newest revision; -> (revision found, newest revision).

    Raises SettingsError for a URL that cannot be used, a file that is no database and a database that a newer
    version of this program wrote, Unavailable for one that is away.
    """
    config = _config()
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_current_head()
    try:
        return _migrated(url, config, scripts, newest)
    except NoDatabase as error:
        example = "sqlite:////path/to/file or postgresql+psycopg://user:password@host/name"
        raise SettingsError(f"ELASTRAIN_DATABASE_URL {error}; give {example}") from error


def _migrated(
    url: str, config: Config, scripts: ScriptDirectory, newest: str | None
) -> tuple[str | None, str | None]:
    engine = open_engine(url)
    try:
        with readable(), reached(), _one_at_a_time, engine.connect() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
            connection.rollback()  # what was begun by looking; alembic begins one that writes
            if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
                raise SettingsError(
                    f"the database is at revision {found}, and this version of elastrain knows revisions up "
                    f"to {newest} only: start the version that wrote it, or restore the backup from before it"
                )
            if found != newest:
                config.attributes["connection"] = connection.execution_options(elastrain_write=True)
                command.upgrade(config, "head")
    finally:
        engine.dispose()
    return found, newest


def revisions(url: str) -> tuple[str | None, str | None]:
    """(revision of the database, newest revision that this program knows)"""
    engine = open_engine(url)
    try:
        with engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()
    return current, ScriptDirectory.from_config(_config()).get_current_head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", SCRIPTS)
    config.set_main_option("path_separator", "os")
    return config

"""Migrations of the store: part of the package, run by the service at its start.

`migrate(url)` brings a database, also an empty one, to the newest revision. On PostgreSQL a lock lets several
service processes start at once: one migrates, the others wait and find nothing to do.
"""

from __future__ import annotations

import threading

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from elastrain.service.store.engine import open_engine

SCRIPTS = "elastrain.service:migrations"
# alembic keeps what it works on in module globals
_one_at_a_time = threading.Lock()


def migrate(url: str) -> None:
    """Up to the newest revision. Raises SQLAlchemy's errors if the database cannot be reached."""
    config = _config()
    engine = open_engine(url)
    try:
        with _one_at_a_time, engine.connect() as connection:
            config.attributes["connection"] = connection.execution_options(elastrain_write=True)
            command.upgrade(config, "head")
    finally:
        engine.dispose()


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

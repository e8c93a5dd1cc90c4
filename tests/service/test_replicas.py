"""Several service processes start at once on a database that nobody has prepared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastrain.service.migrations import migrate, revisions
from elastrain.service.settings import SettingsError
from elastrain.service.store.engine import open_engine
from service_process import HttpRay, Service, eventually

ENTRY = "from elastrain.api.cli import main; main()"


@pytest.mark.stores
@pytest.mark.timeout(240)
def test_of_three_services_that_start_at_once_one_migrates_and_all_are_healthy(
    empty: str, tmp_path: Path
) -> None:
    ray = HttpRay()
    services = [Service(tmp_path, ray, empty) for _ in range(3)]
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda service: service.start(), services))
        said = "".join(service.log.read_text() for service in services)
        steps = re.findall(r"Running upgrade (\w* -> \w+)", said)
        assert " -> 0001" in steps and len(steps) == len(set(steps))
        current, newest = revisions(empty)
        assert current == newest is not None
        # all but one say that another one leads; on SQLite, which does not work across machines, as a warning
        eventually(lambda: _count(services, "standing by") == 2)
        warned = _count(services, "several need PostgreSQL")
        assert warned == (2 if empty.startswith("sqlite") else 0)
    finally:
        for service in services:
            service.stop()
        ray.close()


def _count(services: list[Service], words: str) -> int:
    return sum(service.log.read_text().count(words) for service in services)


@pytest.mark.stores
def test_a_start_waits_for_no_other_start_once_the_database_is_there(empty: str) -> None:
    migrate(empty)
    engine = open_engine(empty)
    with engine.connect() as other:  # it holds what a migration would wait for
        other = other.execution_options(elastrain_write=True)
        if not empty.startswith("sqlite"):
            other.exec_driver_sql(f"SELECT pg_advisory_lock({0x656C6173})")
        else:
            other.exec_driver_sql("SELECT 1")
        found, newest = migrate(empty)
    engine.dispose()
    assert found == newest is not None


def test_a_database_of_a_newer_version_is_left_alone_and_both_revisions_are_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'newer.db'}"
    _, newest = migrate(url)
    engine = open_engine(url)
    with engine.connect() as tx:
        tx.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        tx.exec_driver_sql("COMMIT")
    engine.dispose()
    with pytest.raises(SettingsError, match=f"revision 9999, and this version .* {newest} only"):
        migrate(url)


@pytest.mark.stores
def test_elastrain_migrate_says_what_it_found_and_does_nothing_twice(tmp_path: Path) -> None:
    def run(url: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "ELASTRAIN_HOME": str(tmp_path), "ELASTRAIN_DATABASE_URL": url}
        command = [sys.executable, "-c", ENTRY, "migrate"]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    url = f"sqlite:///{tmp_path / 'fresh.db'}"
    assert "migrated from an empty database" in run(url).stdout
    again = run(url)
    assert (again.returncode, again.stdout.count("was there already")) == (0, 1)
    away = run("postgresql+psycopg://nobody@127.0.0.1:1/none")
    assert (away.returncode, away.stdout) == (7, "")
    assert "ELASTRAIN_DATABASE_URL" in away.stderr

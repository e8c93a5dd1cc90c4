"""The user's code on a node: two workers at once, a tampered package, and folders named as ours."""

from __future__ import annotations

import hashlib
import io
import stat
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from elastrain.trainers.storage import Storage, open_storage
from elastrain.trainers.training.code import BadPackage, fetch, package_key

HOUSE = Path(__file__).parents[2]


def zipped(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def stored(storage: Storage, package: bytes) -> str:
    sha256 = hashlib.sha256(package).hexdigest()
    storage.put(package_key(sha256), package)
    return sha256


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(f"file://{tmp_path}/store")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


def test_eight_workers_that_start_at_once_all_see_the_whole_package(storage: Storage, cache: Path) -> None:
    sha256 = stored(storage, zipped({f"pkg/m{i}.py": f"x = {i}" for i in range(200)}))
    seen: list[int] = []

    def start() -> None:
        seen.append(len(list(fetch(storage, sha256, cache).rglob("*.py"))))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [200] * 8
    assert [path.name for path in cache.iterdir()] == [sha256]  # no scratch is left


def test_a_package_that_was_altered_in_storage_is_refused(storage: Storage, cache: Path) -> None:
    sha256 = hashlib.sha256(b"what was uploaded").hexdigest()
    storage.put(package_key(sha256), zipped({"task.py": "import os"}))
    with pytest.raises(BadPackage, match=f"should be {sha256}"):
        fetch(storage, sha256, cache)
    assert list(cache.iterdir()) == []


def test_a_package_that_is_gone_is_named(storage: Storage, cache: Path) -> None:
    with pytest.raises(BadPackage, match="f00d is not in storage"):
        fetch(storage, "f00d", cache)


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "a\\..\\evil.py", ".."])
def test_a_path_that_leads_out_of_the_package_is_refused(storage: Storage, cache: Path, name: str) -> None:
    sha256 = stored(storage, zipped({"task.py": "", name: "evil"}))
    with pytest.raises(BadPackage, match="leads out of it"):
        fetch(storage, sha256, cache)
    assert not list(cache.parent.rglob("evil.py"))
    assert not (cache / sha256).exists()


def test_a_link_in_a_package_is_refused(storage: Storage, cache: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        link = zipfile.ZipInfo("passwords")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(BadPackage, match="neither a file nor a folder"):
        fetch(storage, stored(storage, buffer.getvalue()), cache)


def test_bytes_that_are_no_zip_are_refused(storage: Storage, cache: Path) -> None:
    with pytest.raises(BadPackage, match="cannot be unpacked"):
        fetch(storage, stored(storage, b"#!/bin/sh"), cache)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(storage: Storage, cache: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("task.py", "harmless")
        archive.writestr("task.py", "not what was shown")
    with pytest.raises(BadPackage, match="cannot be unpacked"):
        fetch(storage, stored(storage, buffer.getvalue()), cache)


def test_the_users_own_api_service_and_trainers_win_from_any_folder(storage: Storage, cache: Path) -> None:
    names = ("api", "service", "trainers")
    files = {f"{name}/__init__.py": f"WHOSE = 'the user, {name}'" for name in names}
    files["elastrain/mine.py"] = "raise ImportError('not to be imported')"
    folder = fetch(storage, stored(storage, zipped(files)), cache)
    program = (
        f"import sys; from pathlib import Path; from elastrain.trainers.training.code import activate;"
        f"activate(Path({str(folder)!r}));"
        "import api, service, trainers; print([m.WHOSE for m in (api, service, trainers)]);"
        "import elastrain.trainers.storage, elastrain.api, elastrain.service;"
        "import subprocess; child = [sys.executable, '-c', 'import api; print(api.WHOSE)'];"
        "subprocess.run(child, check=True)"
    )
    for cwd in (HOUSE, cache):  # our own source tree has folders of these names
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.stderr == ""
        assert sorted(ran.stdout.splitlines()) == sorted(
            ["['the user, api', 'the user, service', 'the user, trainers']", "the user, api"]
        )

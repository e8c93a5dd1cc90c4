"""Uploaded code: named by its digest, checked while it streams in, nothing left of what was refused."""

import hashlib
import io
import stat
import zipfile

import pytest

from elastrain.service.auth import Actor
from elastrain.service.errors import Invalid, TooLarge
from world import ADMIN, SPEC, World


def zipped(files: dict[str, bytes], mode: int = 0o644, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as package:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            package.writestr(info, data)
    return out.getvalue()


def upload(
    world: World, body: bytes, name: str | None = None, project: str = "default", chunk: int = 1000
) -> bool:
    sha256 = name or hashlib.sha256(body).hexdigest()
    with world.control.package_upload(sha256, actor=ADMIN, project=project) as sink:
        for start in range(0, len(body), chunk):
            sink.write(body[start : start + chunk])
        return sink.finish()


def stored(world: World) -> list[str]:
    return [entry.key for entry in world.storage.list("packages")]


def test_a_package_is_stored_once_and_lets_a_job_name_it(world: World) -> None:
    body = zipped({"task.py": b"class Mine: ...\n", "api/__init__.py": b""})
    sha256 = hashlib.sha256(body).hexdigest()
    assert upload(world, body) and not upload(world, body)
    assert world.control.has_package(sha256, actor=ADMIN)
    assert stored(world) == [f"packages/{sha256}.zip"]
    assert world.storage.get(f"packages/{sha256}.zip") == body
    id = world.submit(code=sha256, task="task:Mine")
    world.round()
    assert world.driver(id).claim()["package"] == sha256


def test_a_package_belongs_to_its_project(world: World) -> None:
    body = zipped({"task.py": b""})
    sha256 = hashlib.sha256(body).hexdigest()
    upload(world, body, project="vision")
    assert not world.control.has_package(sha256, actor=ADMIN, project="default")
    stranger = Actor("t-x", "xe", "member", "other")
    assert not world.control.has_package(sha256, actor=stranger, project="vision")
    with pytest.raises(Invalid):
        world.control.submit({**SPEC, "code": sha256}, actor=ADMIN)


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil.py", "a/../../evil.py", "a\\b.py"])
def test_a_path_that_leads_out_is_refused(world: World, name: str) -> None:
    with pytest.raises(Invalid, match="leads out"):
        upload(world, zipped({"fine.py": b"", name: b""}))
    assert stored(world) == []


def test_a_link_is_refused(world: World) -> None:
    with pytest.raises(Invalid, match="links"):
        upload(world, zipped({"link": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777))


def test_a_bomb_is_refused_by_what_it_claims_and_by_what_it_holds(world: World) -> None:
    with pytest.raises(Invalid, match="times its size"):
        upload(world, zipped({"bomb": b"\0" * 50_000_000}))
    body = zipped({"task.py": b"x" * 1000}, method=zipfile.ZIP_STORED)
    with pytest.raises(Invalid):
        upload(world, body.replace(b"x" * 1000, b"y" * 1000))


def test_what_is_no_zip_or_not_what_it_is_called_is_refused(world: World) -> None:
    with pytest.raises(Invalid, match="not a good zip"):
        upload(world, b"hello")
    with pytest.raises(Invalid, match="upload it again"):
        upload(world, zipped({"a.py": b""}), name="0" * 64)
    with pytest.raises(Invalid, match="no sha256"):
        upload(world, b"", name="../../etc/passwd")
    assert stored(world) == []


def test_a_package_over_the_limit_is_refused_with_both_numbers_and_the_largest_files(world: World) -> None:
    world.control.packages._limit = 10_000
    body = zipped({"small.py": b"x", "data.bin": b"z" * 20_000}, method=zipfile.ZIP_STORED)
    with pytest.raises(TooLarge) as refused:
        upload(world, body)
    extra = refused.value.extra
    assert extra["limit"] == 10_000 and extra["size"] > 10_000
    assert extra["largest"][0] == {"path": "data.bin", "bytes": 20_000}
    with pytest.raises(TooLarge):
        world.control.package_upload("0" * 64, actor=ADMIN, declared_bytes=10_001)
    assert stored(world) == []

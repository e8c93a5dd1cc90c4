"""Uploaded code: named by its digest, checked while it streams in, nothing left of what was refused."""

import hashlib
import io
import random
import stat
import zipfile
from pathlib import Path

import pytest

from elastrain.service import zipcheck
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


def broken(method: int, packed: bytes, flip: bool) -> bytes:
    """A zip whose only file does not unpack."""
    body = bytearray(zipped({"task.py": b"".join(b"%d," % n for n in range(3000))}, method=method))
    start = body.index(b"task.py") + len(b"task.py")
    middle = start + 40
    body[middle : middle + len(packed)] = packed
    if flip:
        body[start : start + 4] = b"\xff\xff\xff\xff"
    return bytes(body)


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
@pytest.mark.parametrize("flip", [False, True])
def test_a_zip_whose_contents_were_made_up_is_refused_whatever_packs_it(
    world: World, method: int, flip: bool
) -> None:
    with pytest.raises(Invalid, match="not a good zip"):
        upload(world, broken(method, b"\x00\xff" * 60, flip))


def test_a_zip_with_any_bytes_flipped_is_taken_or_refused_and_never_a_fault(tmp_path: Path) -> None:
    whole = zipped({"a/task.py": b"class Mine: ...\n" * 20, "b.bin": bytes(range(256))})
    draw, refused, file = random.Random(4), 0, tmp_path / "package.zip"
    for _ in range(500):
        body = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        file.write_bytes(body)
        try:
            zipcheck.check(file, len(body))
        except (Invalid, TooLarge):
            refused += 1
    assert refused > 400

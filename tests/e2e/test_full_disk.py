"""A disk too small for what a job saves: everything of this service, and Ray's own files, lie on it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from disks import small
from e2e.house import DIGITS, SHORT, House, Watched, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

MIB = 2**20
# 37.5 million parameters: with Adam's moments a checkpoint takes 430 MiB
LARGE = [
    "task_args={hidden: 500000}",
    "batch={size: 32, microbatch: 16}",
    "checkpoint.every_steps=2",
    "evaluate={at_end: false}",
    "workers={min: 1, max: 1}",
]


@pytest.fixture
def disk() -> Iterator[Path]:
    """300 MiB, by a path that is short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="small-"))
    with small(folder, "300m"):
        yield folder
    folder.rmdir()


@pytest.fixture
def house(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setenv("TMPDIR", str(disk))
    house = House.start(disk / "home").ready()
    yield house
    assert house.server.stop() == 0, house.server.said
    assert house.cli("down").returncode == 0


def test_a_full_disk_is_named_with_its_size_the_service_answers_and_the_next_job_finds_room(
    house: House, disk: Path
) -> None:
    before = shutil.disk_usage(disk).used
    run = Watched(house.client.submit(DIGITS, overrides=LARGE))
    failed = eventually(lambda: run.record.of_type("checkpoint.failed"), 180)[0]
    assert f"the disk of {disk}" in failed["message"] and "is full" in failed["message"]
    assert "of 300 MiB used" in failed["message"]
    assert run.job.refresh().status == "running", "it trains on, and may find room yet"
    run.job.cancel().wait(120)
    run.job.delete()
    eventually(lambda: shutil.disk_usage(disk).used < before + 50 * MIB, 120)
    small = house.client.submit(DIGITS, overrides=[*SHORT, "epochs=5", "workers={min: 1, max: 1}"])
    assert small.wait(120).status == "succeeded"

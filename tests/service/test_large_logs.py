"""A worker that prints a gigabyte costs the service's memory nothing, and no byte is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from world import ADMIN, World

pytestmark = pytest.mark.stores  # a gigabyte is written

PIECES, PIECE = 1024, 2**20
GROWTH_MAX = 200 * 2**20


@pytest.fixture
def own(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def memory() -> int:
    return int(psutil.Process().memory_info().rss)


def test_a_gigabyte_of_output_is_paged_and_downloaded_in_little_memory(
    own: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, driver = own.running()
    printed, facts = hashlib.sha256(), list[dict[str, Any]]()
    for number in range(PIECES):
        line = f"{number:09d} ".encode() + b"x" * 117 + b"\n"
        piece = line * (PIECE // len(line))
        printed.update(piece)
        offset = number * len(piece)
        own.storage.put(f"jobs/{id}/logs/1/w0/{offset:012d}", piece)
        facts.append({"kind": "log", "worker": "w0", "offset": offset, "bytes": len(piece)})
    driver.post(*facts)

    read, real = list[str](), own.storage.get
    monkeypatch.setattr(own.storage, "get", lambda key: read.append(key) or real(key))
    before = memory()
    tail = own.control.logs(id, actor=ADMIN, worker="w0", tail=100)
    assert [item["text"][:9] for item in tail["items"]] == [f"{PIECES - 1:09d}"] * 100
    assert tail["truncated"] and len(read) <= 2, "what is before is not looked through"
    page = own.control.logs(id, actor=ADMIN, worker="w0", offset=300 * PIECE, limit=65536)
    assert page["truncated"] and sum(len(item["text"]) for item in page["items"]) <= 65536 + 128
    size, chunks = own.control.log_bytes(id, actor=ADMIN, worker="w0")
    downloaded, most = hashlib.sha256(), 0
    for chunk in chunks:
        downloaded.update(chunk)
        size -= len(chunk)
        most = max(most, memory())
    assert (size, downloaded.hexdigest()) == (0, printed.hexdigest())
    assert most - before < GROWTH_MAX

"""Logs: valid text whatever was printed and however it is read; never another job's bytes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.service.errors import Invalid, NotFound
from elastrain.service.logtext import rest_length, text_of, unfinished_length
from world import ADMIN, Driver, World

NASTY = (
    b"\xff\xfe\n"
    + "🙂 done\n".encode()
    + b"\0\rprogress 10%\rprogress 20%\n\x1b[31mred\x1b[0m\n"
    + b"after\n"
)


def prints(driver: Driver, *pieces: bytes, worker: str = "w0", start: int = 0) -> int:
    for piece in pieces:
        driver.world.storage.put(f"jobs/{driver.job}/logs/{driver.attempt}/{worker}/{start:012d}", piece)
        driver.post({"kind": "log", "worker": worker, "offset": start, "bytes": len(piece)})
        start += len(piece)
    return start


def read_all(world: World, id: str, limit: int, follow_offsets: bool) -> str:
    text, offset = "", 0
    while True:
        page = world.control.logs(id, actor=ADMIN, worker="w0", offset=offset, limit=limit)
        json.dumps(page, allow_nan=False).encode("utf-8")
        text += "".join(item["text"] for item in page["items"])
        if offset >= page["size"]:
            return text
        offset = page["next_offset"] if follow_offsets else offset + limit


@pytest.mark.parametrize("follow_offsets", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1000])
def test_pages_of_any_size_join_to_the_whole_file(world: World, limit: int, follow_offsets: bool) -> None:
    id, driver = world.running()
    flushed_byte_by_byte = [bytes([byte]) for byte in NASTY[:12]]
    prints(driver, *flushed_byte_by_byte, NASTY[12:20], NASTY[20:])
    driver.ends("succeeded")
    assert read_all(world, id, limit, follow_offsets) == text_of(NASTY)


def test_the_stream_and_the_tail_give_the_same_text(world: World) -> None:
    id, driver = world.running()
    prints(driver, *[bytes([byte]) for byte in NASTY])
    rows = world.control.feed(id, actor=ADMIN, after=0, kinds={"log"})["rows"]
    assert "".join(row["data"]["text"] for row in rows) == text_of(NASTY)
    tail = world.control.logs(id, actor=ADMIN, worker="w0", tail=2)
    assert [item["text"] for item in tail["items"]] == ["\x1b[31mred\x1b[0m\n", "after\n"]
    assert tail["truncated"]
    assert b"".join(world.control.log_bytes(id, actor=ADMIN, worker="w0")[1]) == NASTY


def test_a_character_that_is_still_being_written_is_not_shown_as_broken(world: World) -> None:
    id, driver = world.running()
    smile = "🙂".encode()
    end = prints(driver, b"a" + smile[:2])
    page = world.control.logs(id, actor=ADMIN, worker="w0")
    assert ([item["text"] for item in page["items"]], page["next_offset"]) == (["a"], 1)
    prints(driver, smile[2:] + b"b\n", start=end)
    page = world.control.logs(id, actor=ADMIN, worker="w0", offset=page["next_offset"])
    assert "".join(item["text"] for item in page["items"]) == "🙂b\n"


def test_all_workers_are_read_in_the_order_of_arrival_and_paged(world: World) -> None:
    id, driver = world.running()
    prints(driver, b"one\n", worker="w0")
    prints(driver, b"two\n", worker="w1")
    prints(driver, b"three\n", worker="w0", start=4)
    texts, cursor = [], None
    while True:
        page = world.control.logs(id, actor=ADMIN, limit=5, cursor=cursor)
        texts += [(item["worker"], item["text"]) for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert texts == [("w0", "one\n"), ("w1", "two\n"), ("w0", "three\n")]
    tail = world.control.logs(id, actor=ADMIN, tail=1)["items"]
    assert [item["text"] for item in tail] == ["three\n"]


def test_a_line_of_a_megabyte_is_whole(world: World) -> None:
    id, driver = world.running()
    line = b"x" * 1_000_000 + b"\n"
    prints(driver, line[:400_000], line[400_000:] + b"after\n")
    items = world.control.logs(id, actor=ADMIN, worker="w0", tail=2)["items"]
    assert [len(item["text"]) for item in items] == [1_000_001, 6]
    assert len(world.control.logs(id, actor=ADMIN, worker="w0", limit=2_000_000)["items"]) == 2


def test_a_segment_that_is_gone_is_marked_and_the_rest_is_read(world: World) -> None:
    id, driver = world.running()
    prints(driver, b"one\n", b"two, a longer line\n", b"three\n")
    world.storage.delete(f"jobs/{id}/logs/1/w0/{4:012d}")
    text = "".join(item["text"] for item in world.control.logs(id, actor=ADMIN, worker="w0")["items"])
    assert text == "one\n[lost]............\nthree\n"


@pytest.mark.parametrize(
    "worker", ["../../../etc/passwd", "w0/../../x", "/etc/passwd", "w0\0", "%2e%2e", "w9", ""]
)
def test_only_workers_that_have_a_log_can_be_named(world: World, worker: str) -> None:
    id, driver = world.running()
    prints(driver, b"one\n")
    for read in (
        lambda: world.control.logs(id, actor=ADMIN, worker=worker),
        lambda: world.control.log_bytes(id, actor=ADMIN, worker=worker),
    ):
        with pytest.raises(NotFound):
            read()


def test_an_offset_without_a_worker_is_refused(world: World) -> None:
    id, _ = world.running()
    with pytest.raises(Invalid, match="name the worker"):
        world.control.logs(id, actor=ADMIN, offset=3)


@given(st.text(max_size=30).map(str.encode) | st.binary(max_size=30), st.integers(0, 30))
def test_a_cut_at_any_byte_gives_every_character_to_one_side(data: bytes, cut: int) -> None:
    cut = min(cut, len(data))
    head, rest = data[:cut], data[cut:]
    moved = rest_length(head, rest)
    assert text_of(head + rest[:moved]) + text_of(rest[moved:]) == text_of(data)


@given(st.text(max_size=30), st.integers(0, 100))
def test_what_is_held_back_at_an_end_is_less_than_a_character(text: str, cut: int) -> None:
    data = text.encode()[:cut]
    held = unfinished_length(data)
    assert held <= 3 and data[: len(data) - held].decode("utf-8") is not None

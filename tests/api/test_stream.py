"""Following over a bad line: no gap, no repeat, an end."""

import json
from collections.abc import Iterator

import httpx
import pytest

from elastrain.client import Unreachable, Update
from elastrain.client.home import Address
from elastrain.client.http import Http
from elastrain.client.stream import follow, parse


def frame(kind: str, position: int, **data: object) -> str:
    return f"event: {kind}\nid: {position}\ndata: {json.dumps(data)}\n\n"


class Cut(httpx.SyncByteStream):
    """A body that ends in a broken connection."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __iter__(self) -> Iterator[bytes]:
        yield self.text.encode()
        raise httpx.ReadError("connection reset by peer")


def test_comments_and_a_message_cut_off_in_the_middle_are_no_updates() -> None:
    text = ": hello\n\n" + frame("event", 3, type="a") + "event: event\nid: 4\ndata: {"
    assert list(parse(text.splitlines())) == [Update("event", 3, {"type": "a"})]


def test_following_goes_on_where_the_line_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastrain.client.stream.PAUSES_S", (0.0,))
    asked = []

    def serve(request: httpx.Request) -> httpx.Response:
        after = int(request.headers["Last-Event-ID"])
        asked.append(after)
        if len(asked) == 2:
            raise httpx.ConnectError("refused")
        numbers = [n for n in range(1, 11) if n > after]
        if len(asked) < 4:  # cut in the middle of the third message
            head = "".join(frame("log", n, n=n) for n in numbers[:2])
            return httpx.Response(200, stream=Cut(head + frame("log", numbers[2], n=numbers[2])[:-9]))
        return httpx.Response(200, text="".join(frame("log", n, n=n) for n in numbers) + frame("end", 10))

    http = Http(Address("http://test", "t"), httpx.MockTransport(serve))
    updates = list(follow(http, "/feed", {}, 0, patience_s=10))
    assert [update.data["n"] for update in updates[:-1]] == list(range(1, 11))
    assert updates[-1].kind == "end"
    assert asked == [0, 2, 2, 4]


def test_a_service_that_stays_away_ends_following_with_connection_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastrain.client.stream.PAUSES_S", (0.01,))

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    http = Http(Address("http://test", "t"), httpx.MockTransport(refuse))
    with pytest.raises(Unreachable, match=r"Connection lost.*refused"):
        list(follow(http, "/feed", {}, 0, patience_s=0.05))

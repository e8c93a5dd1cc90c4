"""What a server and a worker say to each other arrives, whoever of them is late. Over real connections."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from elastrain.trainers.strategies import lines
from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.lines import Closed, Hub, Line, connect
from elastrain.trainers.strategies.pushing import PushingWorker, Servers
from elastrain.trainers.strategies.serving import ServingTrainer

PATIENCE_S = 20.0


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub("127.0.0.1", "key")
    yield made
    made.leave()


@pytest.fixture(autouse=True)
def opened() -> Iterator[list[Line]]:
    yield LINES
    while LINES:
        LINES.pop().close()


LINES: list[Line] = []


def hello(hub: Hub, worker: str = "w0", generation: int = 1, key: str = "key") -> Line:
    said = {"worker": worker, "generation": generation, "key": key}
    LINES.append(line := connect({"host": "127.0.0.1", "push": hub.port}, said))
    line._socket.settimeout(PATIENCE_S)  # a frame that is lost fails the test rather than hang it
    return line


def heard(hub: Hub) -> tuple[str, str]:
    worker, head = hub.inbox.take(lambda: None, lambda: None)
    return worker, head["kind"]


def test_a_task_that_was_dealt_before_the_workers_line_to_this_server_was_there_waits(hub: Hub) -> None:
    """The first server has heard the worker's hello and deals; another one has not yet."""
    hub.open(1, ["w0"])
    hub.send("w0", {"kind": "task"}, [torch.arange(3.0)])
    head, body = hello(hub).receive()
    assert head == {"kind": "task"} and body.view(torch.float32).tolist() == [0.0, 1.0, 2.0]


def test_what_waited_for_a_worker_of_an_older_generation_is_not_told_in_the_next(hub: Hub) -> None:
    hub.open(1, ["w0"])
    hub.send("w0", {"kind": "task"})
    hub.open(2, ["w0"])
    line = hello(hub, generation=2)
    hub.send("w0", {"kind": "rest"})
    assert line.receive()[0] == {"kind": "rest"}


def test_a_hello_before_the_server_is_in_that_generation_is_heard_once_it_is(hub: Hub) -> None:
    line = hello(hub, generation=2)
    hub.open(2, ["w0"])
    assert heard(hub) == ("w0", "hello")
    hub.send("w0", {"kind": "welcome"})
    assert line.receive()[0] == {"kind": "welcome"}


@pytest.mark.parametrize(
    "says",
    [
        lambda hub: hello(hub, key="guessed"),
        lambda hub: hello(hub, worker="w9"),
        lambda hub: hello(hub, generation=0),
    ],
    ids=["without the key", "not a member", "of an older generation"],
)
def test_who_does_not_belong_to_the_generation_is_not_heard(hub: Hub, says: Callable[[Hub], Line]) -> None:
    hub.open(1, ["w0"])
    line = says(hub)
    with pytest.raises(Closed):
        line.receive()
    assert hub.inbox.at_hand() == []


@pytest.mark.parametrize(
    "frame", [b"\xff" * 16, struct.pack("<QQ", 4, 0) + b"null", b"GET / HTTP/1.1\r\n\r\n"]
)
def test_who_does_not_speak_the_language_is_hung_up_on(hub: Hub, frame: bytes) -> None:
    hub.open(1, ["w0"])
    with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE_S) as stranger:
        stranger.sendall(frame)
        assert stranger.recv(1) == b"", "whatever it announced, no memory is kept for it"
    line = hello(hub)
    hub.send("w0", {"kind": "welcome"})
    assert line.receive()[0] == {"kind": "welcome"}


def test_a_push_lies_on_the_shelf_before_it_is_acknowledged(hub: Hub) -> None:
    hub.open(1, ["w0"])
    line = hello(hub)
    line.send({"kind": "push", "task": Task(3, 2)}, [torch.ones(2)])
    assert line.receive()[0] == {"kind": "stored", "task": [3, 2]}
    with hub.changed:
        _, body = hub.shelf.take(Task(3, 2))
    assert body.view(torch.float32).tolist() == [1.0, 1.0]


def test_a_task_of_one_server_that_came_before_the_welcome_of_another_is_not_lost() -> None:
    """Each line keeps its order; the lines of several servers keep none among each other."""
    worker = object.__new__(PushingWorker)
    worker.session = SimpleNamespace(check=lambda generation: None)  # type: ignore[assignment]
    servers = Servers(1, None)  # type: ignore[arg-type]
    for rank, kind in ((1, "task"), (0, "welcome"), (0, "task")):
        servers.inbox.put((rank, {"kind": kind}, torch.empty(0)))
    heard = [worker._hear(servers, kind)[:2] for kind in ("welcome", "task", "task")]
    assert heard == [(0, {"kind": "welcome"}), (1, {"kind": "task"}), (0, {"kind": "task"})]


def test_a_worker_whose_push_arrives_before_the_others_have_said_hello_is_heard(hub: Hub) -> None:
    """It kept what it had in hand, and had nearly all of it."""
    server = object.__new__(ServingTrainer)
    server.strategy = SimpleNamespace(staleness=None)  # type: ignore[assignment]
    server.replica = SimpleNamespace(plan=SimpleNamespace(total_steps=9), order=[], step=0)  # type: ignore[assignment]
    server.session = SimpleNamespace(check=lambda generation: None)  # type: ignore[assignment]
    server.hub, server.replay, server.workers = hub, None, ["w0", "w1"]
    words = ("w0", {"kind": "hello", "task": [0, 0]}), ("w0", {"kind": "arrived", "step": 0})
    for word in (*words, ("w1", {"kind": "hello", "task": None})):
        hub.inbox.put(word)
    server._meet_workers(SimpleNamespace(number=1), [])  # type: ignore[arg-type]
    assert server.ledger is not None and server.ledger.choose() == Task(0, 0)
    assert server.ledger.deal() == [("w1", Task(1, 0))]


def test_a_server_that_had_no_file_left_for_a_while_hears_workers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Strangers who call and say nothing can bring that about."""
    plain, short = socket.socket.accept, [3]

    def accept(listener: socket.socket) -> tuple[socket.socket, object]:
        if short[0]:
            short[0] -= 1
            raise OSError(errno.EMFILE, "too many open files")
        return plain(listener)

    monkeypatch.setattr(socket.socket, "accept", accept)
    hub = Hub("127.0.0.1", "key")
    hub.open(1, ["w0"])
    hello(hub)
    assert heard(hub) == ("w0", "hello") and short == [0]
    hub.leave()


def test_a_stranger_who_says_nothing_is_hung_up_on(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "HELLO_S", 0.05)
    with socket.create_connection(("127.0.0.1", hub.port), timeout=PATIENCE_S) as stranger:
        assert stranger.recv(1) == b""

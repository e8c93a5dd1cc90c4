"""How a push, or a version of the parameters, travels between a worker and a server: plain TCP.

    frame: lengths of head and body (8 bytes each) │ head: JSON │ body: tensors, one behind the other

A server listens from its first moment on, and takes nothing from whoever does not know the attempt's key.
Each line has a thread that reads; a server's has another that writes, so that a worker that stands still
holds up nobody. A generation has lines of its own: what is still in an older one is not heard.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.shelf import Shelf
from elastrain.trainers.training.lifeline import bound_sends

CONNECT_S = 20.0
HELLO_BYTES = 65536  # of a hello: nothing larger is taken from whoever has not shown the key
HELLO_S = 60.0  # for a server to come to the generation that a worker is in
GONE_S = 60.0  # without an answer of the other machine, until what is sent to it fails
LOOK_S = 0.05  # whoever waits looks so often whether the generation is still on
WAITS_S = 1.0  # and says so often that it waits
_FRAME = struct.Struct("<QQ")


class Closed(Exception):
    """The other end is gone, or has left the generation."""


class Line:
    """One connection. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(None)
        bound_sends(connection, GONE_S)
        self._socket = connection
        self._sending = threading.Lock()

    def send(self, head: Json, body: Sequence[Tensor] = ()) -> None:
        """body: flat tensors of any types, those of 8 bytes first. Raises Closed."""
        parts = [
            t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data for t in body if t.numel()
        ]
        said = json.dumps(head, separators=(",", ":")).encode()
        try:
            with self._sending:
                self._socket.sendall(_FRAME.pack(len(said), sum(map(len, parts))) + said)
                for part in parts:
                    self._socket.sendall(part)
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self, most: int | None = None) -> tuple[Json, Tensor]:
        """Head and body (bytes,) u8. most: bytes; who announces more is not listened to. Raises Closed."""
        head, body = _FRAME.unpack(self._read(_FRAME.size).numpy().tobytes())
        if most is not None and head + body > most:
            raise Closed(f"a frame of {head + body} bytes was announced")
        said: Json = json.loads(self._read(head).numpy().tobytes())
        return said, self._read(body)

    def _read(self, size: int) -> Tensor:
        target = torch.empty(size, dtype=torch.uint8)
        view, at = target.numpy().data, 0
        try:
            while at < size:
                got = self._socket.recv_into(view[at:])
                if got == 0:
                    raise Closed("the line was closed")
                at += got
        except OSError as error:
            raise Closed(str(error)) from error
        return target

    @contextlib.contextmanager
    def at_most(self, seconds: float) -> Iterator[None]:
        """What is waited for meanwhile fails after so long without a byte: Closed."""
        self._socket.settimeout(seconds)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._socket.settimeout(None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect(address: Json, hello: Json) -> Line:
    """A worker's line to a server; address: {host, push: port}. Raises Closed."""
    try:
        line = Line(socket.create_connection((address["host"], address["push"]), timeout=CONNECT_S))
    except OSError as error:
        raise Closed(f"{address['host']}:{address['push']}: {error}") from error
    line.send({"kind": "hello", **hello})
    return line


class Inbox:
    """What arrived, by whichever line, for the one thread that trains."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._arrived: list[Any] = []

    def put(self, item: Any) -> None:
        with self.changed:
            self._arrived.append(item)
            self.changed.notify_all()

    def clear(self) -> None:
        with self.changed:
            self._arrived.clear()

    def take(self, check: Callable[[], None], waits: Callable[[], None]) -> Any:
        """The next item. While there is none: `check` may raise, and `waits` is called now and then."""
        said = time.monotonic()
        while True:
            with self.changed:
                if self.changed.wait_for(lambda: bool(self._arrived), LOOK_S):
                    return self._arrived.pop(0)
            check()
            if time.monotonic() - said > WAITS_S:
                said = time.monotonic()
                waits()

    def at_hand(self) -> list[Any]:
        """Everything that is here already."""
        with self.changed:
            arrived, self._arrived = self._arrived, []
            return arrived


Part = tuple[Json, Tensor]  # a push, as it came: head, and body (bytes,) u8


class Hub:
    """Where the workers of a generation reach one server.

    A push is laid on the shelf and acknowledged the moment it is here, whatever the training thread does. All
    else comes to the inbox, as (worker, head).
    """

    def __init__(self, host: str, key: str) -> None:
        self._key = key
        self._listener = socket.create_server((host, 0))
        self.inbox = Inbox()
        self.shelf: Shelf[Part] = Shelf()  # to be changed with `changed` held
        self.changed = self._changed = threading.Condition()
        self._generation = 0
        self._members: frozenset[str] = frozenset()
        self._lines: dict[str, Line] = {}
        # worker -> what is to be sent to it: its line to this server may come after that to another one
        self._outgoing: dict[str, queue.SimpleQueue[Any]] = {}
        threading.Thread(target=self._accept, daemon=True, name="hub").start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def open(self, generation: int, workers: Sequence[str]) -> None:
        """From now on only these are heard."""
        with self._changed:
            lines, self._lines = self._lines, {}
            queues, self._outgoing = self._outgoing, {w: queue.SimpleQueue() for w in workers}
            self._generation, self._members = generation, frozenset(workers)
            self.inbox.clear()
            self._changed.notify_all()
        for outgoing in queues.values():
            outgoing.put(None)
        for line in lines.values():
            line.close()

    def leave(self) -> None:
        """The generation is over: the workers notice it by their lines."""
        self.open(self._generation, ())

    def send(self, worker: str, head: Json, body: Sequence[Tensor] = ()) -> None:
        """Without waiting; `body` must not change any more. A worker that has not said hello yet gets it when
        it does; one that is gone is noticed elsewhere."""
        with self._changed:
            found = self._outgoing.get(worker)
        if found is not None:
            found.put((head, body))

    # ---- threads ----------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(LOOK_S)  # no file is left, or whoever called hung up at once
                continue
            with contextlib.suppress(OSError, RuntimeError):  # it is gone already; no thread is to be had
                line = Line(connection)
                threading.Thread(target=self._serve, args=(line,), daemon=True, name="line").start()

    def _serve(self, line: Line) -> None:
        outgoing: queue.SimpleQueue[Any] | None = None
        try:
            with line.at_most(HELLO_S):  # whoever has not shown the key keeps no thread for ever
                hello, _ = line.receive(HELLO_BYTES)
            if not hmac.compare_digest(str(hello.get("key", "")), self._key):
                return
            worker, generation = str(hello["worker"]), int(hello["generation"])
            outgoing = self._enter(worker, generation, line)
            if outgoing is None:
                return
            threading.Thread(target=_write, args=(line, outgoing), daemon=True, name="write").start()
            self._take(generation, worker, (hello, torch.empty(0)))
            while self._take(generation, worker, line.receive()):
                pass
        except (Closed, KeyError, ValueError, TypeError, AttributeError):  # the hello is anybody's
            pass
        finally:
            if outgoing is not None:
                outgoing.put(None)
            line.close()

    def _enter(self, worker: str, generation: int, line: Line) -> queue.SimpleQueue[Any] | None:
        """What is to be sent over the line; None: it is not of this generation, or not the worker's first."""
        with self._changed:
            self._changed.wait_for(lambda: self._generation >= generation, HELLO_S)
            if self._generation != generation or worker not in self._members or worker in self._lines:
                return None
            self._lines[worker] = line
            return self._outgoing[worker]

    def _take(self, generation: int, worker: str, part: Part) -> bool:
        head = part[0]
        with self._changed:
            if self._generation != generation or not self._members:
                return False
            if head["kind"] == "push":
                self.shelf.put(Task(*head["task"]), part)
        if head["kind"] == "push":
            self.send(worker, {"kind": "stored", "task": head["task"]})
        else:
            self.inbox.put((worker, head))
        return True


def _write(line: Line, outgoing: queue.SimpleQueue[Any]) -> None:
    with contextlib.suppress(Closed):
        while (frame := outgoing.get()) is not None:
            line.send(*frame)

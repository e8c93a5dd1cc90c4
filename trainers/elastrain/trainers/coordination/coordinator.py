"""The thin shell around the membership machine: a WebSocket server in the driver. No torch.

Workers keep a connection open; a killed process closes it within milliseconds. What they say becomes an
event of the machine, and what the machine answers is sent, or carried out by `Attempt`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.messages import Event, Fault, Json, Report, Rewind
from elastrain.trainers.membership.suspicion import Disagreement
from elastrain.trainers.membership.wire import encode

BEAT_S = 1.0  # so often workers hear that the coordinator is there
FIRST_WORD_S = 20.0  # for a worker that has connected to say who it is


class Coordinator:
    """Connections by worker. `feed` takes an event in; `heard` takes what is not the machine's business."""

    def __init__(self, key: str, feed: Callable[[Event], None], heard: Callable[[str, Json], None]) -> None:
        self.key, self.feed, self.heard = key, feed, heard
        self.url = ""
        self.welcome: Json = {}
        self.addresses: dict[str, Json] = {}
        self._connections: dict[str, ServerConnection] = {}
        self._server: Server | None = None
        self._beating: asyncio.Task[None] | None = None

    async def open(self, host: str) -> None:
        """Listen on a free port: `url` is the address for workers."""
        self._server = await serve(
            self._talk,
            host,
            0,
            process_request=self._admit,
            compression=None,
            max_size=None,
            ping_interval=None,
        )
        self._beating = asyncio.create_task(self._beat())
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"ws://{host}:{port}"

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        if hmac.compare_digest(request.headers.get("Authorization", ""), f"Bearer {self.key}"):
            return None
        return connection.respond(HTTPStatus.UNAUTHORIZED, "the key is not this attempt's\n")

    async def _talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        worker = parse_qs(urlsplit(connection.request.path).query).get("worker", [""])[0]
        try:
            first = json.loads(await asyncio.wait_for(connection.recv(), FIRST_WORD_S))
            if worker in self._connections:
                await connection.close(1008, "this worker is connected already")
                return
            self._connections[worker] = connection
            self.addresses[worker] = first["address"]
            self.heard(worker, first)
            await connection.send(json.dumps(self.welcome))
            self.feed(m.Registered(worker, first["node"], first["pid"], first["address"]))
            async for text in connection:
                if self._connections.get(worker) is not connection:
                    return  # fenced
                self._hear(worker, json.loads(text))
        except (ConnectionClosed, TimeoutError):
            pass
        finally:
            if self._connections.get(worker) is connection:
                del self._connections[worker]
                self.feed(m.Closed(worker))

    def _hear(self, worker: str, said: Json) -> None:
        event = parse(worker, said)
        if event is not None:
            self.feed(event)
        else:
            self.heard(worker, said)

    # ---- telling ----------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            self.tell(list(self._connections), {"kind": "beat"})
            await asyncio.sleep(BEAT_S)

    def tell(self, workers: Iterable[str], message: Json) -> None:
        """Send without waiting, in order. A worker that is gone is noticed by its connection, not here."""
        connections = [self._connections[w] for w in workers if w in self._connections]
        broadcast(connections, encode(message))

    def fence(self, worker: str) -> None:
        """Close the connection; what is still in it is not heard."""
        connection = self._connections.pop(worker, None)
        if connection is not None:
            connection.transport.abort()


def parse(worker: str, said: Json) -> Event | None:
    """A worker's message as an event of the machine; None if it is for somebody else."""
    match said["kind"]:
        case "beat":
            return m.Beat(worker)
        case "began":
            return m.Began(worker, said["step"], said["microbatch"])
        case "waits":
            return m.Waits(worker, said["generation"], said["finished"])
        case "works":
            return m.Works(worker)
        case "probed":
            return m.Probed(worker, said["generation"], tuple(said["unreachable"]))
        case "notice":
            return m.Notice(worker, said["grace_s"], said["why"])
        case "committed":
            return m.Committed(worker, said["generation"], said["step"], said["record"])
        case "sealed":
            return m.Sealed(worker, said["generation"], said["step"])
        case "idle":
            return m.Idle(worker, said["generation"], said["step"])
        case "report":
            return m.Reported(worker, _report(said["report"]))
        case "start_failed":
            return m.StartFailed(worker, Fault(**said["fault"]))
        case _:
            return None


def _report(data: Json) -> Report:
    fault, rewind = data["fault"], data["rewind"]
    return Report(
        **{
            **data,
            "held": tuple((a, b) for a, b in data["held"]),
            "done": tuple(data["done"]),
            "fault": Fault(**fault) if fault is not None else None,
            "rewind": Rewind(**rewind) if rewind is not None else None,
            "corrupt": Disagreement.from_json(data["corrupt"]) if data["corrupt"] is not None else None,
        }
    )

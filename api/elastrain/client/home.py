"""Where the service is and which token opens it: given, in the environment, or left in HOME by `up`."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from elastrain.client.errors import NotAllowed, Unreachable


@dataclass(frozen=True)
class Address:
    url: str
    token: str


def home() -> Path:
    """HOME of this installation: ELASTRAIN_HOME, else ~/.elastrain."""
    return Path(os.environ.get("ELASTRAIN_HOME", "").strip() or "~/.elastrain").expanduser().absolute()


def discover(url: str | None = None, token: str | None = None) -> Address:
    """Arguments win over ELASTRAIN_URL and ELASTRAIN_TOKEN, those over HOME.

    Raises Unreachable if there is no address, NotAllowed if there is no token.
    """
    address = url or os.environ.get("ELASTRAIN_URL", "").strip() or _local_url()
    if not address:
        raise Unreachable(
            f"No service is known: ELASTRAIN_URL is not set and {home()} has no ports.json. "
            "Start one here with `elastrain up`, or set ELASTRAIN_URL."
        )
    # the local token opens the local service only: it is not sent to an address from elsewhere
    local = address.rstrip("/") == _local_url()
    secret = token or os.environ.get("ELASTRAIN_TOKEN", "").strip() or (_local_token() if local else None)
    if not secret:
        raise NotAllowed(
            f"No token for {address}: set ELASTRAIN_TOKEN (`elastrain up` writes one to HOME/token)."
        )
    return Address(address.rstrip("/"), secret)


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

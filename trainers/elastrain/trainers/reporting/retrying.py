"""How the driver's calls to the service are repeated, and whom they trust."""

from __future__ import annotations

import random
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

FIRST_RETRY_S, LAST_RETRY_S = 0.2, 10.0


def retry_waits() -> Iterator[float]:
    """Seconds to wait before each next try: doubling from 0.2 to 10, spread so that drivers do not march."""
    wait_s = FIRST_RETRY_S
    while True:
        yield wait_s * random.uniform(0.7, 1.3)
        wait_s = min(2 * wait_s, LAST_RETRY_S)


def trusted(certificates: str) -> ssl.SSLContext | bool:
    """Whom to believe that he is the service: who shows one of these certificates (PEM), or has it from one;
    without any, whom this machine trusts. For httpx's `verify`. Raises ssl.SSLError for text that is none."""
    return ssl.create_default_context(cadata=certificates) if certificates else True


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")

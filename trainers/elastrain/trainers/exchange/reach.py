"""Which of the other members does this one reach? Asked when everybody waits and nothing arrives."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CONNECT_S = 4.0  # a lost packet of the greeting is sent again after 1 and 3 s
TOGETHER_S = 8.0  # whom it did not come to until then is taken for reachable
AT_ONCE = 16


def unreachable(addresses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Members with whose address no connection can be made. addresses: worker -> {host, port}."""
    deadline = time.monotonic() + TOGETHER_S - CONNECT_S

    def fails(address: Mapping[str, Any]) -> bool:
        if time.monotonic() > deadline:
            return False
        try:
            socket.create_connection((address["host"], address["port"]), CONNECT_S).close()
        except OSError:
            return True
        return False

    with ThreadPoolExecutor(AT_ONCE, "reach") as pool:
        return [w for w, failed in zip(addresses, pool.map(fails, addresses.values()), strict=True) if failed]

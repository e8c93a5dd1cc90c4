"""A look at a cluster from inside, before the first job: what is installed, what can be reached from there.

    python -m elastrain.trainers.launching.cluster_check

The service has Ray run this once as a Ray Job of its own, and reads one line from its log: that needs nothing
but Ray. It runs where drivers do, imports neither Ray nor torch, and is over within a second.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import httpx

from elastrain.trainers.launching import receipt_line
from elastrain.trainers.reporting.retrying import is_loopback, trusted
from elastrain.trainers.storage import StorageError, open_storage

PACKAGES = ("elastrain", "ray", "torch")
KEY = "readyz/cluster"
TRIES, PAUSE_S, ANSWER_S = 3, 1.0, 5.0


def look(env: Mapping[str, str]) -> dict[str, Any]:
    """{python, elastrain, ray, torch: version or null, storage, service: null, or why it cannot be used}

    Whys name no addresses.
    """
    found: dict[str, Any] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    place = json.loads(env["ELASTRAIN_CHECK_STORAGE"])
    found["storage"] = _put(place["url"], place["options"])
    found["service"] = _call(env["ELASTRAIN_DRIVER_URL"], env.get("ELASTRAIN_CERTIFICATES", ""))
    return found


def _put(url: str, options: Mapping[str, str]) -> str | None:
    try:
        open_storage(url, options, brief=True).put(KEY, b"ok", create_only=False)
    except StorageError as error:
        return error.kind
    return None


def _call(url: str, certificates: str) -> str | None:
    why = ""
    for number in range(TRIES):
        time.sleep(PAUSE_S if number else 0.0)
        try:
            reply = httpx.get(
                f"{url}/healthz",
                timeout=ANSWER_S,
                trust_env=not is_loopback(url),
                verify=trusted(certificates),
            )
        except httpx.HTTPError as error:
            why = type(error).__name__
            continue
        if reply.status_code == 200:
            return None
        why = f"it answered {reply.status_code}"
    return why


def main() -> int:
    print(receipt_line.write(look(os.environ), receipt_line.CLUSTER), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

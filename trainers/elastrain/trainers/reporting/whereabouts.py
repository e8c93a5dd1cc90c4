"""Where the service is, for a driver that does not reach it: `jobs/{job}/control.json` in object storage."""

from __future__ import annotations

import json

from elastrain.trainers.storage import NotFound, Storage


def control_key(job: str) -> str:
    return f"jobs/{job}/control.json"


def tell(storage: Storage, job: str, url: str) -> None:
    """The service is at `url` now: for drivers that know another address. Raises StorageError."""
    storage.put(control_key(job), json.dumps({"url": url}).encode(), create_only=False)


def look_up(storage: Storage, job: str) -> str | None:
    """The service's newest address; None if it never moved. Raises StorageError."""
    try:
        url = json.loads(storage.get(control_key(job)))["url"]
    except (NotFound, ValueError, KeyError, TypeError):
        return None
    return url if isinstance(url, str) and url.startswith(("http://", "https://")) else None

"""The line in the log of a search that holds its receipt: ray_sweep.py writes it, the service reads it."""

from __future__ import annotations

import json
from typing import Any

MARK = "ELASTRAIN-RECEIPT "


def write(receipt: dict[str, Any]) -> str:
    return MARK + json.dumps(receipt)


def find(log: str) -> Any:
    """What the newest such line holds; None if there is none, or it was cut off."""
    for line in reversed(log.splitlines()):
        if line.startswith(MARK):
            try:
                return json.loads(line.removeprefix(MARK))
            except ValueError:
                return None
    return None

"""The line in a Ray Job's log that holds its result: ray_sweep.py and cluster_check.py write one, the service
reads it.
"""

from __future__ import annotations

import json
from typing import Any

RECEIPT, CLUSTER = "ELASTRAIN-RECEIPT ", "ELASTRAIN-CLUSTER "


def write(result: dict[str, Any], mark: str = RECEIPT) -> str:
    return mark + json.dumps(result)


def find(log: str, mark: str = RECEIPT) -> Any:
    """What the newest such line holds; None if there is none, or it was cut off."""
    for line in reversed(log.splitlines()):
        if line.startswith(mark):
            try:
                return json.loads(line.removeprefix(mark))
            except ValueError:
                return None
    return None

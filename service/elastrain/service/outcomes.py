"""The durable outcome: what a driver wrote to object storage before it exited."""

from __future__ import annotations

import json
import logging

from elastrain.service.casts import BadFact
from elastrain.service.reports import end_of
from elastrain.service.settle import End
from elastrain.trainers.storage import NotFound, Storage

log = logging.getLogger(__name__)


def read(storage: Storage, job: str, attempt: int) -> End | None:
    """The outcome; None if the driver left none that can be read. Raises StorageError: then nobody knows."""
    key = f"jobs/{job}/attempts/{attempt}/outcome.json"
    try:
        return end_of(json.loads(storage.get(key)))
    except NotFound:
        return None
    except (ValueError, AttributeError, BadFact) as error:
        log.warning("%s cannot be read and counts as not there: %s", key, error)
        return None

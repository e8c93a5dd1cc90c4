"""What all schemas share: the words of a status, numbers as JSON can hold them, examples."""

from typing import Any, Literal

from pydantic import ConfigDict

Status = Literal[
    "queued", "starting", "running", "pausing", "paused", "cancelling", "cancelled", "succeeded", "failed"
]
FailedBy = Literal["user", "infrastructure", "service"]
Number = float | Literal["NaN", "Infinity", "-Infinity"]

AT = "2025-06-01T09:30:00.000000Z"
JOB_ID = "j-4k7w2m9q3x5z"


def example(value: Any) -> ConfigDict:
    """A model's settings with one example of it."""
    return ConfigDict(json_schema_extra={"examples": [value]})

"""What all schemas share: numbers as JSON can hold them, an example to tell."""

from typing import Any, Literal

from pydantic import ConfigDict

FailedBy = Literal["user", "infrastructure", "service"]
Number = float | Literal["NaN", "Infinity", "-Infinity"]

AT = "2025-06-01T09:30:00.000000Z"
JOB_ID = "j-4k7w2m9q3x5z"


def example(value: Any) -> ConfigDict:
    """A model's settings with one example of it."""
    return ConfigDict(json_schema_extra={"examples": [value]})

"""JSON as this API writes it: strict, with the numbers that JSON lacks as text."""

import json
import math
from typing import Any

from pydantic_core import to_json
from starlette.responses import JSONResponse


def speakable(value: Any) -> Any:
    """`value` with NaN and the infinities as "NaN", "Infinity", "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): speakable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [speakable(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Strict JSON text on one line. The walk is taken only when a number asks for it."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(speakable(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))


class Reply(JSONResponse):
    """A JSON answer, returned as it is: a declared response model documents, it does not filter."""

    def render(self, content: Any) -> bytes:
        try:
            return to_json(content, inf_nan_mode="strings")
        except ValueError:  # a lone surrogate in a user's text cannot be encoded: replaced, not refused
            return dumps(content).encode("utf-8", "replace")

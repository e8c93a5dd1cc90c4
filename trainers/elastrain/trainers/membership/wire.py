"""How a message between coordinator and workers goes over the line: JSON, and a long one compressed."""

from __future__ import annotations

import json
import zlib

from elastrain.trainers.membership.messages import Json

LONG = 4096  # bytes; an opening to a thousand workers says the same words thousands of times
FAST = 1  # zlib's level: it is written once and sent a thousand times, but everybody waits for it


def encode(message: Json) -> str | bytes:
    """Text, or the same text compressed."""
    text = json.dumps(message, separators=(",", ":"))
    return text if len(text) < LONG else zlib.compress(text.encode(), FAST)


def decode(data: str | bytes) -> Json:
    message: Json = json.loads(zlib.decompress(data) if isinstance(data, bytes) else data)
    return message

"""Facts: what an attempt tells the service, as plain data."""

from __future__ import annotations

from datetime import UTC, datetime

from elastrain.trainers.membership.messages import Json


def now() -> str:
    """RFC 3339, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event(type_: str, message: str, data: Json | None = None) -> Json:
    return {"kind": "event", "at": now(), "type": type_, "message": message, "data": data or {}}


def warning(message: str) -> Json:
    """One of the job's warnings, for what only shows once it runs."""
    return {"kind": "warning", "at": now(), "message": message}

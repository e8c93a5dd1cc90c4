"""How large and how deep a spec may be: it is read, listed and sent as often as its job is."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from elastrain.trainers.spec.errors import FieldError

MOST_BYTES = 256 * 1024
MOST_LEVELS = 64


def too_much(data: Mapping[str, Any]) -> FieldError | None:
    """What is wrong with the size of a spec; None if it is small enough to be looked at."""
    for field, value in data.items():
        if _deeper_than(value, MOST_LEVELS):
            detail = f"is nested more than {MOST_LEVELS} levels deep: make it flatter, or keep it in a file"
            return {"pointer": f"/{field}"[:80], "detail": detail}
    sizes = {str(field): len(json.dumps(value, default=str)) for field, value in data.items()}
    if sum(sizes.values()) <= MOST_BYTES:
        return None
    largest = max(sizes, key=lambda field: sizes[field])
    detail = (
        f"the spec has {sum(sizes.values())} bytes, the limit is {MOST_BYTES}, and the largest field is "
        f"{largest[:80]} with {sizes[largest]}: keep data in files or object storage, and name them here"
    )
    return {"pointer": f"/{largest}"[:80], "detail": detail}


def _deeper_than(value: Any, levels: int) -> bool:
    """Level by level: what is too deep for a limit is too deep for a recursion, too."""
    level: list[Any] = [value]
    for _ in range(levels):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()

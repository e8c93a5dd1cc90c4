"""Values of facts, checked before they reach a column: drivers are ours, what user code reports is not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from elastrain.service.store.metrics import split

Fact = Mapping[str, Any]

MAX_TEXT = 20_000
# the largest number that an integer column takes, and a size in bytes
MAX_INT = 2**31 - 1
MAX_BYTES = 2**53
WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class BadFact(ValueError):
    """This fact cannot be written; the message says why."""


def fields(
    fact: Fact,
    *,
    texts: Sequence[str] = (),
    wholes: Sequence[str] = (),
    numbers: Sequence[str] = (),
    lists: Sequence[str] = (),
    tables: Sequence[str] = (),
) -> dict[str, Any]:
    """Those of the named fields that the fact has, each of its kind or null. Raises BadFact."""
    found: dict[str, Any] = {}
    for name in (*texts, *wholes, *numbers, *lists, *tables):
        if name not in fact:
            continue
        value = fact[name]
        if value is None:
            found[name] = None
        elif name in texts:
            found[name] = clean(value)[:MAX_TEXT]
        elif name in wholes:
            found[name] = whole(fact, name)
        elif name in numbers:
            found[name] = finite(value)
        elif isinstance(value, list if name in lists else Mapping):
            found[name] = strict(value)
        else:
            raise BadFact(f"{name} is {value!r}")
    return found


def whole(fact: Fact, name: str, default: int | None = None) -> int:
    """A count, a step or a size. Raises BadFact."""
    value = fact.get(name, default)
    most = MAX_BYTES if name in ("bytes", "offset") else MAX_INT
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise BadFact(f"{name} is {value!r}; it must be a whole number from 0 to {most}")
    if int(value) != value:
        raise BadFact(f"{name} is {value!r}; it must be a whole number")
    return int(value)


def real(value: object) -> float:
    """A number that may be NaN or infinite, also as a word. Raises BadFact."""
    if isinstance(value, str) and value in WORDS:
        return WORDS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFact(f"{value!r} is no number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def finite(value: object) -> float | None:
    """A number for a column; one that is not finite is left unknown. Raises BadFact."""
    number = real(value)
    return number if math.isfinite(number) else None


def text(fact: Fact, name: str) -> str:
    return clean(fact.get(name) or "")[:MAX_TEXT]


def worker_id(fact: Fact, name: str) -> str:
    """A worker's id ends up in storage keys and file names: only plain ones. Raises BadFact."""
    value = fact.get(name)
    if not isinstance(value, str) or not WORKER.fullmatch(value):
        raise BadFact(f"{name} is {value!r}, not a worker's id")
    return value


def clean(value: object) -> str:
    """PostgreSQL takes no NUL, and no database takes half a surrogate pair."""
    return str(value).replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def strict(value: Any) -> Any:
    """Strict JSON: NaN and infinities as words, at any depth."""
    if isinstance(value, float):
        number, word = split(value)
        return word if number is None else number
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(key): strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list | tuple) else value

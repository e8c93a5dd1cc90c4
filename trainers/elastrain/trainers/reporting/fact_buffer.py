"""Facts on their way to the service: kept as JSON, in order, in bounded memory."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

Fact = Mapping[str, Any]

BUFFER_BYTES = 32 * 1024**2  # above it metrics are thinned
BATCH_BYTES = 512 * 1024
BATCH_FACTS = 1000


@dataclass(frozen=True)
class Encoded:
    kind: str
    body: bytes  # JSON
    number: int | None  # of a metric that may be thinned: one of training, there is one per step


class Buffer:
    """Facts in order, in bounded memory: the metrics of training are thinned evenly, all else stays."""

    def __init__(self, limit_bytes: int = BUFFER_BYTES) -> None:
        self._limit = limit_bytes
        self._facts: deque[Encoded] = deque()
        self._bytes = 0
        self._metrics = 0  # numbers given
        self._stride = 1  # a thinned buffer holds every so manyth metric

    def __len__(self) -> int:
        return len(self._facts)

    def add(self, fact: Fact) -> None:
        """Keep a copy of the fact, as JSON. Raises TypeError for what JSON cannot hold."""
        number = None
        if fact["kind"] == "metric" and not any(name.startswith("val_") for name in fact["values"]):
            number = self._metrics = self._metrics + 1
        encoded = Encoded(str(fact["kind"]), encode(fact), number)
        self._facts.append(encoded)
        self._bytes += len(encoded.body)
        if self._bytes > self._limit:
            self._thin()

    def take(self) -> list[Encoded]:
        """Remove and return the oldest facts that fit into one request; at least one."""
        batch: list[Encoded] = []
        size = 0
        while self._facts and len(batch) < BATCH_FACTS and (not batch or size < BATCH_BYTES):
            batch.append(self._facts.popleft())
            size += len(batch[-1].body)
        self._bytes -= size
        if not self._facts:
            self._stride = 1
        return batch

    def drop_metrics(self) -> None:
        """Of the metrics of training only the newest stays: for when not even the spool has room."""
        self._keep(lambda fact: fact.number is None or fact.number == self._metrics)

    def _thin(self) -> None:
        """Halve what is kept: fewer metrics, evenly, and of progress the newest. Events are never dropped."""
        newest = next((fact for fact in reversed(self._facts) if fact.kind == "progress"), None)
        self._keep(lambda fact: fact.kind != "progress" or fact is newest)
        self._keep(self._on_stride)  # those that came since the last time
        while self._bytes > self._limit // 2 and self._stride <= self._metrics:
            self._stride *= 2
            self._keep(self._on_stride)
        log.warning("the service is away: of the kept metrics only one in %d stays", self._stride)
        # what cannot be thinned may grow: try again only once as much as this has come
        self._limit = max(self._limit, 2 * self._bytes)

    def _on_stride(self, fact: Encoded) -> bool:
        return fact.number is None or fact.number % self._stride == 0 or fact.number == self._metrics

    def _keep(self, wanted: Callable[[Encoded], bool]) -> None:
        self._facts = deque(filter(wanted, self._facts))
        self._bytes = sum(len(fact.body) for fact in self._facts)


def encode(value: Any) -> bytes:
    """JSON with NaN and infinities as strings, as the API has them. Raises TypeError."""
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":")).encode()


def finite(value: Any) -> Any:
    """The same with NaN and infinities as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value

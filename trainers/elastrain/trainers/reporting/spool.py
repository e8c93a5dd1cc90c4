"""Facts that the service has not acknowledged, kept in object storage in case the driver dies.

    jobs/{job}/attempts/{n}/spool/{first_seq:012d}.json   {"first_seq": 17, "facts": [...]}

A segment is one batch, numbered for good. The driver posts it later and deletes it; if the driver dies, the
service reads what is left (service/spool.py), and takes each number once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from elastrain.trainers.reporting.fact_buffer import Encoded, encode
from elastrain.trainers.storage import AlreadyExists, NotFound, Storage

# more than this of one attempt is not kept: then metrics are left out, and everything else still goes in
SPOOL_BYTES = 64 * 1024**2


@dataclass
class Segment:
    """Numbered facts. facts: None while they lie in storage only. stored: whether they lie there."""

    first: int
    count: int
    facts: list[Encoded] | None
    stored: bool = False
    size: int = 0  # bytes there


class Spool:
    """Of one attempt. Every method blocks, and raises StorageError."""

    def __init__(self, storage: Storage, job: str, attempt: int) -> None:
        self._storage, self._folder = storage, f"jobs/{job}/attempts/{attempt}/spool"
        self.bytes = 0

    @property
    def full(self) -> bool:
        return self.bytes > SPOOL_BYTES

    def put(self, segment: Segment) -> None:
        """Keep it. Safe to repeat: a segment's contents never change."""
        assert segment.facts is not None
        data = body({"first_seq": segment.first}, segment.facts)
        try:
            self._storage.put(self._key(segment), data)
        except AlreadyExists:  # ours, and the answer was lost
            pass
        segment.stored, segment.size = True, len(data)
        self.bytes += segment.size

    def load(self, segment: Segment) -> None:
        """Have its facts in memory again."""
        if segment.facts is None:
            try:
                found = json.loads(self._storage.get(self._key(segment)))["facts"]
            except NotFound:  # somebody tidied up: its numbers are left out
                found = []
            segment.facts = [Encoded(str(fact.get("kind")), encode(fact), None) for fact in found]

    def delete(self, segment: Segment) -> None:
        self._storage.delete(self._key(segment))
        self.bytes -= segment.size

    def _key(self, segment: Segment) -> str:
        return f"{self._folder}/{segment.first:012d}.json"


def body(head: dict[str, object], facts: list[Encoded]) -> bytes:
    """A batch as JSON, as it is posted and as it is kept."""
    return json.dumps(head)[:-1].encode() + b', "facts": [' + b",".join(f.body for f in facts) + b"]}"

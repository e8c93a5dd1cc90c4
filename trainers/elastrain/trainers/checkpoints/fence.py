"""The fence between attempts, in object storage: whoever sees a later attempt's claim writes no more.

An attempt writes `attempts/{n}/claim.json` before it begins, and the claims of earlier ones that never did.
So there is no gap: an earlier attempt finds out by one look at the claim after its own.
"""

from __future__ import annotations

import json
import secrets

from elastrain.trainers.reporting.facts import now
from elastrain.trainers.storage import AlreadyExists, NotFound, Storage, StorageError


class Superseded(StorageError):
    """A later attempt has begun: this one may write no more."""

    def __init__(self, attempt: int) -> None:
        super().__init__("superseded", f"attempt {attempt + 1} has begun: this one writes no more")


class Fence:
    """Of one attempt. All methods raise StorageError where the store cannot be asked."""

    def __init__(self, storage: Storage, job: str, attempt: int) -> None:
        self._storage, self._attempt = storage, attempt
        self._folder = f"jobs/{job}/attempts"
        self._mine = json.dumps({"at": now(), "attempt": attempt, "nonce": secrets.token_hex(16)}).encode()

    def begin(self) -> None:
        """Claim this attempt and fence off those before it; safe to repeat. Raises AlreadyExists if another
        process began this attempt, or else Superseded: then none did."""
        try:
            self._storage.put(self._claim(self._attempt), self._mine)
        except AlreadyExists:  # by another process; or by us, and the answer was lost
            found = self._storage.get(self._claim(self._attempt))
            if found != self._mine:
                if json.loads(found).get("attempt", 0) > self._attempt:
                    raise Superseded(self._attempt) from None
                raise
        for earlier in range(self._attempt - 1, 0, -1):
            try:
                self._storage.put(self._claim(earlier), self._mine)
            except AlreadyExists:
                break
        self.check()

    def check(self) -> None:
        """Before anything is published or deleted. Raises Superseded."""
        try:
            self._storage.size(self._claim(self._attempt + 1))
        except NotFound:
            return
        raise Superseded(self._attempt)

    def _claim(self, attempt: int) -> str:
        return f"{self._folder}/{attempt}/claim.json"

"""A repeated request gets the first one's answer, which is kept together with what the request did.

A client whose answer was lost cannot know whether it was heard, and asks again with the same key. Key, hash
of the body, what was changed and the answer are one transaction; a request that was refused leaves nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from elastrain.service.auth import Actor
from elastrain.service.clock import Clock
from elastrain.service.errors import Conflict, Invalid
from elastrain.service.store import Store, Tx, fresh, jobs, keys
from elastrain.service.views import JobViews

Json = dict[str, Any]
# what a request does inside its transaction -> (the job that its answer is about or None, the answer)
Act = Callable[[Tx], tuple[str | None, Json]]

KEY_MAX = 255
TRIES = 5


class Once:
    """Writing transactions, each done once per token, route and key."""

    def __init__(self, store: Store, job_views: JobViews, clock: Clock) -> None:
        self._store = store
        self._views = job_views
        self._clock = clock

    def do(
        self, actor: Actor, route: str, key: str | None, body: Mapping[str, Any], act: Act
    ) -> tuple[Json, bool]:
        """-> (answer, whether it was done now). Without a key it is always done.

        Raises Invalid if the key was used for another body, Conflict while another request holds it, and
        what `act` raises; then nothing is kept.
        """
        if key is not None and not 1 <= len(key) <= KEY_MAX:
            raise Invalid(f"The idempotency key has {len(key)} characters; give 1 to {KEY_MAX}")
        digest = body_digest(body)
        for left in reversed(range(TRIES)):
            try:
                return self._try(actor, route, key, digest, act)
            except keys.KeyTaken:  # by the same call, a moment before: its answer is there now
                continue
            except fresh.IdTaken:  # the next one is another
                if not left:
                    raise
        raise Conflict(
            f"Another request with the idempotency key {key!r} is under way",
            code="idempotency_key_in_use",
            hint="Send it again in a moment.",
        )

    def _try(self, actor: Actor, route: str, key: str | None, digest: str, act: Act) -> tuple[Json, bool]:
        with self._store.write() as tx:
            if (before := self._before(tx, actor, route, key, digest)) is not None:
                return before, False
            job, answer = act(tx)
            if key is not None:
                keys.add(tx, actor.token_id, route, key, digest, job, answer, self._clock.now())
        return answer, True

    def known(self, actor: Actor, route: str, key: str | None, body: Mapping[str, Any]) -> Json | None:
        """The answer that this request had before, if it had one. Raises Invalid as `do`."""
        with self._store.read() as tx:
            return self._before(tx, actor, route, key, body_digest(body))

    def _before(self, tx: Tx, actor: Actor, route: str, key: str | None, digest: str) -> Json | None:
        before = None if key is None else keys.find(tx, actor.token_id, route, key)
        if before is not None and before.body_digest != digest:
            raise Invalid(
                f"The idempotency key {key!r} was used for another request",
                code="idempotency_key_reused",
                hint="Take a new key for a new request.",
            )
        return None if before is None else self._answer(tx, before)

    def _answer(self, tx: Tx, before: keys.KeyRow) -> Json:
        if before.answer is None and before.job is not None:
            return self._views.one(tx, jobs.get(tx, before.job))
        if before.answer is None:  # a late repetition of a submit must not make the job again
            raise Conflict(
                "The job that the first request with this idempotency key was about is deleted",
                code="idempotency_key_spent",
                hint="Take a new key for a new request.",
            )
        return before.answer


def body_digest(data: Mapping[str, Any]) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()

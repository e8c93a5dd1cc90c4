"""The driver's line to the service: its claim, its facts, what is desired of it. The driver opens it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from elastrain.service import reports
from elastrain.service.auth import digest
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.errors import Forbidden, Gone, Invalid, Unauthenticated
from elastrain.service.jobs import Desired, Status
from elastrain.service.meters import Meters
from elastrain.service.settings import Settings
from elastrain.service.store import Store, Tx, attempts, feed, jobs
from elastrain.service.store.rows import AttemptRow, JobRow

Json = dict[str, Any]
PROTOCOL = 1
MAX_FACTS = 5000
# tokens that are remembered as good
MET = 10_000


class DriverLine:
    def __init__(
        self, store: Store, settings: Settings, clock: Clock, changes: Changes, meters: Meters
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._changes = changes
        self._meters = meters
        self._met: set[str] = set()  # digests

    def claim(self, body: Mapping[str, Any]) -> Json:
        """Grant an attempt to the first driver that knows its code; the same nonce gets the same answer."""
        job, number, code, nonce = _claim_fields(body)
        now = self._clock.now()
        with self._store.write() as tx:
            attempt = attempts.get(tx, job, number)
            if attempt is None or not hmac.compare_digest(digest(code), attempt.code_digest):
                raise Forbidden("There is no such attempt, or the code is wrong", code="claim_refused")
            row = jobs.lock(tx, job)
            attempt = attempts.get(tx, job, number) or attempt
            refusal = _refusal(row, attempt, digest(nonce))
            if refusal is None:
                token = _token(attempt, nonce)
                if attempt.state != "claimed":
                    _grant(tx, row, attempt, nonce, token, now)
                answer = self._answer(row, attempt, token)
            elif refusal.security:
                data = {"attempt": number}
                feed.add_event(tx, job, "security.claim_refused", refusal.text, data, now)
        if refusal is not None:
            raise Forbidden(refusal.text, code="claim_refused", hint="This driver must exit.")
        self._changes.tell(job)
        return answer

    def met(self, token: str | None) -> bool:
        """Whether it was found before. An attempt's token is good for as long as the job is there, and each
        call looks for itself, so this needs no end."""
        return token is not None and digest(token) in self._met

    def meet(self, token: str | None) -> None:
        """Raises Unauthenticated."""
        if token is None:
            raise Unauthenticated("This call needs the token that the driver's claim returned")
        with self._store.read() as tx:
            found = attempts.line(tx, digest(token))
        if found is None:
            raise Unauthenticated("This driver token is unknown")
        if len(self._met) >= MET:
            self._met.clear()
        self._met.add(digest(token))

    def facts(self, token: str, body: Mapping[str, Any]) -> Json:
        """Write what is new; repeating a batch is safe, since (attempt, seq) counts once."""
        first, facts = _batch(body)
        with self._store.write() as tx:
            row, attempt = self._speaker(tx, token, lock=True)
            if body.get("attempt", attempt.number) != attempt.number:
                raise Invalid(
                    f"This token is for attempt {attempt.number}, the body names {body['attempt']!r}"
                )
            gone = _gone(row.id, attempt.number, row.attempt, attempt.outcome)
            taken = reports.take(tx, row, attempt, first, facts, self._clock.now())
            acked = max(attempt.acked_seq, first + len(facts) - 1)
            ended = any(fact.get("kind") == "outcome" for fact in taken.facts)
            # while we hold its lock, nothing but its end changes what is desired of it
            version = jobs.get(tx, row.id).desired_version if ended else row.desired_version
        if taken.facts:
            self._meters.took(row, taken)
            self._changes.tell(row.id, decide=ended, reported=version == row.desired_version)
        if gone is not None:  # its history was taken all the same
            gone.extra["acked_seq"] = acked
            raise gone
        return {"acked_seq": acked, "desired_version": version}

    def desired(self, token: str) -> Json:
        """What the driver is to do now. Raises Unauthenticated, Gone."""
        with self._store.read() as tx:
            row, attempt = self._speaker(tx, token, lock=False)
        if (gone := _gone(row.id, attempt.number, row.attempt, attempt.outcome)) is not None:
            raise gone
        return desired_of(row)

    def version(self, token: str) -> tuple[str, int]:
        """(job, version of what is desired): all that a driver asks for as long as nothing changes.

        Raises Unauthenticated, Gone.
        """
        with self._store.read() as tx:
            found = attempts.line(tx, digest(token))
        if found is None:
            raise Unauthenticated("This driver token is unknown")
        if (gone := _gone(found.job, found.number, found.current, found.outcome)) is not None:
            raise gone
        return found.job, found.desired_version

    def _speaker(self, tx: Tx, token: str, lock: bool) -> tuple[JobRow, AttemptRow]:
        """The job and attempt of a driver's token. Raises Unauthenticated."""
        found = jobs.of_token(tx, digest(token), lock)
        if found is None:
            raise Unauthenticated("This driver token is unknown")
        row, number = found
        attempt = attempts.get(tx, row.id, number)
        assert attempt is not None  # it has the token
        return row, attempt

    def _answer(self, row: JobRow, attempt: AttemptRow, token: str) -> Json:
        return {
            "protocol": PROTOCOL,
            "token": token,
            "job": row.id,
            "attempt": attempt.number,
            "spec": row.spec,
            "secrets": {},
            "env": dict(row.spec["env"]),
            "storage_url": self._settings.storage_url,
            "storage_options": self._settings.storage_options,
            "package": row.spec["code"],
            "desired": desired_of(row),
        }


def _gone(job: str, number: int, current: int, outcome: str | None) -> Gone | None:
    """Why the service no longer speaks with this attempt."""
    if current == number and outcome != "lost":
        return None
    detail = f"Attempt {number} of job {job} is over; the current one is {current}"
    return Gone(detail, hint="Post what happened until now, and exit.")


class _Refusal:
    def __init__(self, text: str, security: bool = False) -> None:
        self.text = text
        self.security = security


def desired_of(row: JobRow) -> Json:
    # a minimum that was raised holds once the scheduler has the workers for it; training does not stop for it
    least = min(row.workers_min, max(1, row.workers_target))
    workers = {"min": least, "max": row.workers_max, "target": row.workers_target}
    return {
        "version": row.desired_version,
        "desired": row.desired.value,
        "workers": workers,
        "checkpoint_no": row.checkpoint_no,
        "checkpoint_done": row.checkpoint_done,
    }


def _refusal(row: JobRow, attempt: AttemptRow, nonce_digest: str) -> _Refusal | None:
    """Why this claim is refused; None if it is granted, again or for the first time."""
    if attempt.nonce_digest not in (None, nonce_digest):
        return _Refusal(f"Attempt {attempt.number} was claimed by another driver before", security=True)
    if row.attempt != attempt.number or attempt.state == "ended" or attempt.outcome is not None:
        return _Refusal(f"Attempt {attempt.number} is over; the job is {row.status}")
    if attempt.nonce_digest is None and row.desired is not Desired.RUN:
        return _Refusal(f"The job is to {row.desired}, nothing may start any more")
    if row.status not in (Status.STARTING, Status.RUNNING, Status.PAUSING, Status.CANCELLING):
        return _Refusal(f"The job is {row.status}")
    return None


def _grant(tx: Tx, row: JobRow, attempt: AttemptRow, nonce: str, token: str, now: float) -> None:
    attempts.change(
        tx,
        row.id,
        attempt.number,
        state="claimed",
        claimed_at=now,
        submitted_at=attempt.submitted_at or now,
        code=None,
        nonce_digest=digest(nonce),
        token_digest=digest(token),
    )
    data = {"attempt": attempt.number, "submission_id": attempt.submission_id}
    feed.add_event(tx, row.id, "attempt.started", f"Attempt {attempt.number} started", data, now)


def _token(attempt: AttemptRow, nonce: str) -> str:
    """Derived, not stored: a repeated claim gets the same token, and the store holds no usable one."""
    mac = hmac.new(attempt.token_secret.encode(), nonce.encode(), hashlib.sha256)
    return f"eld_{mac.hexdigest()}"


def _claim_fields(body: Mapping[str, Any]) -> tuple[str, int, str, str]:
    if body.get("protocol") != PROTOCOL:
        raise Invalid(
            f"The driver speaks protocol {body.get('protocol')!r}, this service {PROTOCOL}",
            hint="Install the same version of elastrain on the cluster and in the service.",
        )
    job, number, code, nonce = (body.get(name) for name in ("job", "attempt", "code", "nonce"))
    if not (
        isinstance(job, str) and type(number) is int and isinstance(code, str) and isinstance(nonce, str)
    ):
        raise Invalid("A claim has job, attempt, code and nonce")
    if len(nonce) < 16:
        raise Invalid(f"The nonce has {len(nonce)} characters; give at least 16 random ones")
    return job, number, code, nonce


def _batch(body: Mapping[str, Any]) -> tuple[int, list[Mapping[str, Any]]]:
    first, facts = body.get("first_seq"), body.get("facts")
    if type(first) is not int or first < 0 or not isinstance(facts, list):
        raise Invalid("A batch has first_seq, a whole number of at least 0, and facts, a list")
    if len(facts) > MAX_FACTS:
        raise Invalid(f"A batch has {len(facts)} facts; send at most {MAX_FACTS} at once")
    return first, [fact if isinstance(fact, Mapping) else {"kind": None} for fact in facts]

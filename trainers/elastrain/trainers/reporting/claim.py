"""The driver's first call: a one-time code becomes a token, spec and secrets. Before it, nothing starts."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from elastrain.trainers.launching.sweep import TAG
from elastrain.trainers.reporting.retrying import is_loopback, retry_waits, trusted

log = logging.getLogger(__name__)

PROTOCOL = 1
GIVE_UP_S = 600.0  # a service that is away for longer has the job's next attempt to claim
LATER = (408, 425, 429)  # answers that ask to try again; other 4xx refuse


class Refused(Exception):
    """The service does not want this driver: it must exit, and start nothing. The message says why."""


class Unanswered(Exception):
    """The service could not be reached in time."""


@dataclass(frozen=True)
class Ticket:
    """What Ray gave this driver, and all that it gave: Ray shows these to whoever may call its API."""

    url: str
    job: str
    attempt: int
    code: str
    tag: str = ""  # of all processes of this attempt, see sweep.py
    certificates: str = ""  # by which the service is known, in PEM; none: those that this machine trusts

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Ticket:
        """Raises Refused if this process was not started by the service."""
        try:
            return cls(
                env["ELASTRAIN_DRIVER_URL"],
                env["ELASTRAIN_JOB"],
                int(env["ELASTRAIN_ATTEMPT_NUMBER"]),
                env["ELASTRAIN_CLAIM"],
                env[TAG],
                env.get("ELASTRAIN_CERTIFICATES", ""),
            )
        except (KeyError, ValueError) as error:
            raise Refused(f"drivers are started by the service; this one has no {error}") from error


@dataclass(frozen=True)
class Claim:
    """What the service answered."""

    token: str
    spec: dict[str, Any]
    storage_url: str
    desired: dict[str, Any]  # {version, desired, workers: {min, max, target}, checkpoint_no}
    package: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    storage_options: dict[str, str] = field(default_factory=dict)


def claim(
    ticket: Ticket, transport: httpx.BaseTransport | None = None, give_up_s: float = GIVE_UP_S
) -> Claim:
    """Ask until there is an answer. A repeated call carries the same nonce, and so gets the same answer.

    Raises Refused or Unanswered.
    """
    body = {
        "protocol": PROTOCOL,
        "job": ticket.job,
        "attempt": ticket.attempt,
        "code": ticket.code,
        "nonce": secrets.token_urlsafe(24),
    }
    deadline = time.monotonic() + give_up_s
    with httpx.Client(
        base_url=ticket.url,
        timeout=15.0,
        trust_env=not is_loopback(ticket.url),
        transport=transport,
        verify=trusted(ticket.certificates),
    ) as http:
        for wait_s in retry_waits():
            answer = _ask(http, body)
            if answer is not None:
                return answer
            if time.monotonic() + wait_s > deadline:
                raise Unanswered(f"the service at {ticket.url} did not answer for {give_up_s:g} s")
            time.sleep(wait_s)
    raise AssertionError("unreachable: the waits have no end")


def _ask(http: httpx.Client, body: dict[str, Any]) -> Claim | None:
    """One try; None if it should be repeated. Raises Refused."""
    try:
        reply = http.post("/v1/driver/claim", json=body)
    except httpx.HTTPError as error:
        log.warning("the service could not be asked for the job: %r", error)
        return None
    if reply.status_code == 200:
        return _read(reply.json())
    if reply.status_code >= 500 or reply.status_code in LATER:
        log.warning("the service answered %d to the claim", reply.status_code)
        return None
    raise Refused(f"the service refused this driver ({reply.status_code}): {_detail(reply)}")


def _read(answer: Mapping[str, Any]) -> Claim:
    if answer.get("protocol") != PROTOCOL:
        raise Refused(f"the service speaks protocol {answer.get('protocol')!r}, this driver {PROTOCOL}")
    return Claim(**{name: answer[name] for name in Claim.__dataclass_fields__ if name in answer})


def _detail(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:300]

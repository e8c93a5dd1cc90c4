"""Names that the service gives: jobs, installations, submissions to Ray."""

from __future__ import annotations

import re
import secrets

# Crockford's alphabet: sorts like its numbers, and has no letter that looks like a digit
ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_EPOCH_S = 1_700_000_000
_JOB = re.compile(r"j-[0-9a-z]{10}")
_SUBMISSION = re.compile(r"([0-9a-z]+)-(j-[0-9a-z]{10})-(\d+)(?:-sweep-(\d+))?")


def new_job_id(now_s: float) -> str:
    """j- and ten characters: 40 bits of milliseconds, so that ids sort by age, then 10 random bits.

    Two jobs of the same millisecond may collide: whoever inserts the second one asks again.
    """
    milliseconds = int((now_s - _EPOCH_S) * 1000) % (1 << 40)
    return "j-" + base32(milliseconds << 10 | secrets.randbits(10), 10)


def base32(number: int, length: int) -> str:
    return "".join(ALPHABET[number >> 5 * place & 31] for place in reversed(range(length)))


def new_installation_id() -> str:
    return base32(secrets.randbits(30), 6)


def submission_id(installation: str, job: str, attempt: int) -> str:
    return f"{installation}-{job}-{attempt}"


def sweep_id(submission: str, number: int) -> str:
    """Of the Ray Job that searches, for the `number`th time, for what an attempt has left behind."""
    return f"{submission}-sweep-{number}"


def tag(installation: str, job: str, attempt: int) -> str:
    """What every process of an attempt has in its environment, and can be found by."""
    return f"{installation}/{job}/{attempt}"


def parse_submission(installation: str, text: str | None) -> tuple[str, int, int] | None:
    """(job, attempt, number of the sweep or 0 for its driver) if this is a submission of ours, else None."""
    match = _SUBMISSION.fullmatch(text or "")
    if match is None or match[1] != installation:
        return None
    return match[2], int(match[3]), int(match[4] or 0)


def is_job_id(text: str) -> bool:
    return _JOB.fullmatch(text) is not None

"""`resume_from`: the checkpoint of another job that a job begins from, as long as it has none of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]{0,63})(?:@(\d{1,10}))?")


OUT_OF_ORDER = (
    "that checkpoint is of an asynchronous run, whose steps may have counted out of order, and this job "
    "makes them in order: use strategy parameter_server with another staleness than 0"
)


class NoSource(Exception):
    """The checkpoint to begin from cannot be used: the job must not begin without it. Says why."""


@dataclass(frozen=True)
class Source:
    """step None: the newest."""

    job: str
    step: int | None

    @classmethod
    def parse(cls, text: str) -> Source:
        """Raises ValueError, saying what is allowed."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:80]!r} is neither a job id nor job id@step, such as j-4k7w2m9q3x@100")
        return cls(match[1], int(match[2]) if match[2] is not None else None)

    def __str__(self) -> str:
        return self.job if self.step is None else f"{self.job}@{self.step}"

"""`resume_from`: the checkpoint of another job that a job begins from, as long as it has none of its own.

A step is a place in the data. Where it is the same place in both jobs, the new one goes on there, with
everything. Where it is not, only the model is taken, and all that was counted begins anew: to go on with the
number would leave out samples of the epoch and read others twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastrain.trainers.spec import JobSpec

_TEXT = re.compile(r"([A-Za-z0-9][A-Za-z0-9-]{0,63})(?:@(\d{1,10}))?")
MODEL_ONLY = "model_only"  # in a manifest that is offered: why nothing else of it is taken


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


def place(spec: JobSpec, samples: int | None) -> dict[str, Any]:
    """What makes a step the place in the data that it is. samples: of the data set; None: not known yet."""
    return {
        **({"dataset length": samples} if samples is not None else {}),
        "batch.size": spec.batch.size,
        "batch.microbatch": spec.batch.microbatch,
        "strategy.local_steps": getattr(spec.strategy, "local_steps", None),
        "seed": spec.seed,
        "shuffle": spec.shuffle,
    }


def moved(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """Why a step of theirs is another place in our data; None: it is the same, as far as ours is known.
    theirs: empty for a checkpoint that does not say."""
    if not theirs:
        return "that checkpoint does not say of which data it is"
    other = [name for name, value in ours.items() if theirs.get(name) != value]
    said = [f"{name} is {json.dumps(ours[name])} and was {json.dumps(theirs.get(name))}" for name in other]
    return ", ".join(said) or None


def model_only(resume_from: str, why: str) -> str:
    """The job's warning."""
    return (
        f"resume_from {resume_from}: {why}, so its step is another place in the data: only the model is "
        "taken (parameters and buffers); step, updates, learning rate schedule and optimizer state begin anew"
    )

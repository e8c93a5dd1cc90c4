"""What a worker holds, and what it caught: the two things that its words carry. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from elastrain.trainers.membership.suspicion import Disagreement

Json = dict[str, Any]
Range = tuple[int, int]  # [start, stop) in blocks


@dataclass(frozen=True)
class Fault:
    """An exception that a worker caught. `phase` is where: start, compute, evaluate, checkpoint, verdict."""

    phase: str
    error: str  # "NameError: name 'x' is not defined"
    traceback: str
    step: int | None = None
    microbatch: int | None = None
    at_once: bool = False  # certainly the user's: ImportError, SyntaxError, refused input

    @property
    def place(self) -> tuple[str, int | None, int | None]:
        return (self.phase, self.step, self.microbatch)


@dataclass(frozen=True)
class Rewind:
    """Training went wrong by itself: go on from a checkpoint of step `newest` or before, in a way that does
    not lead here again."""

    newest: int  # step; what came after it has led to nothing
    number: int  # of this rollback, from 1: how often the learning rate is lowered
    why: str


@dataclass(frozen=True)
class Report:
    """What a member holds when its generation is over. All of it is at `step`."""

    generation: int
    why: Literal["boundary", "halted", "broken", "fault", "corrupt", "rewound"]
    step: int  # steps committed and applied here
    cursor: Json | None = None  # replicated state at `step`; None: nothing is held
    record: Json | None = None  # the commit record that led to `step`
    held: tuple[Range, ...] = ()  # blocks whose optimizer state is here
    whole: bool = False  # every parameter is here, at `step`
    done: tuple[int, ...] = ()  # microbatches of `step` whose gradients are here, or which go on here
    fault: Fault | None = None
    detail: str = ""
    corrupt: Disagreement | None = None
    rewind: Rewind | None = None
    layout: int = 0  # the generation whose layout gives exactly `held` to this worker; 0: none

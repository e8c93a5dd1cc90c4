"""The processes of one worker as the rest of it sees them: what each does, and what they do together.

Here: a worker of one process. Of several (`workers.processes`): lockstep.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Dismissed(Exception):
    """The coordinator needs this worker no longer, or is gone."""


class Alone:
    """A worker of one process: what follows without a word."""

    number, count = 0, 1
    shares = True  # each process computes some samples of a microbatch; else all of them compute all

    @property
    def lead(self) -> bool:
        return self.number == 0

    @property
    def place(self) -> tuple[object, ...]:
        """What seeds this process's generators beside what seeds a worker's."""
        return ("shard", self.number) if self.count > 1 and self.shares else ()

    @property
    def generation(self) -> int:
        """That they are in; -1: in none that they would know of."""
        return -1

    def enter(self, generation: int) -> None:
        """From now on whoever leaves this generation is not waited for."""

    def leave(self, generation: int) -> None:
        """This process has failed in it, in its own way."""

    def halt(self, generation: int) -> None:
        """The coordinator has ended it; heard by the lead."""

    def lose(self) -> None:
        """The coordinator is gone, or needs this worker no longer; heard by the lead."""

    def halted(self, generation: int) -> bool:
        return False

    def left(self, generation: int) -> bool:
        """Has one of them left it?"""
        return False

    def gather(self, value: T) -> list[T]:
        """Everyone's value, by number; plain JSON. Raises Broken if one of them left the generation."""
        return [value]

    def agree(self, decide: Callable[[], T]) -> T:
        """What `decide` returns in the lead, plain JSON; or Broken, Halted or Dismissed if it raises that."""
        return decide()

    def go_on(self, decide: Callable[[], T]) -> T:
        """As `agree`, when all have come here: none has left, and none can before the next thing."""
        return decide()

    def rally(self, value: T) -> list[T]:
        """As `gather`, out of the generation: everybody comes, wherever it left."""
        return [value]

    def dismiss(self, why: str) -> None:
        """The lead: the others need not go on. They still do what they owe."""

    def wait(self, timeout_s: float) -> None:
        """The lead: until all others have ended."""

    def share(self, samples: int) -> tuple[int, int]:
        """Which of so many samples this process computes: first, and last + 1. Near-equal runs."""
        if not self.shares:
            return 0, samples
        small, larger = divmod(samples, self.count)
        first = self.number * small + min(self.number, larger)
        return first, first + small + (self.number < larger)

    def counts(self, samples: int) -> bool:
        """Is there anything in them that this process computes for all?"""
        first, end = self.share(samples)
        return first < end

    @property
    def tells(self) -> bool:
        """Does what this process computed of a microbatch count beside what the others did?"""
        return self.shares or self.lead

    def part(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those samples of a microbatch. One that has none reads the first, since all compute together; what
        comes of it counts nothing."""
        first, end = self.share(len(indices))
        return indices[first:end] if first < end else indices[:1]

"""How long nobody computed, from one generation to the next."""

from __future__ import annotations

import time
from collections.abc import Callable

from elastrain.trainers.membership.generation import Phase
from elastrain.trainers.membership.messages import Began, Event


class Pause:
    """Ends when the first microbatch of the next generation begins: chunks may still change hands then. Where
    none does, it ends when the generation is formed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None  # None: members compute, or none have yet
        self._until: float | None = None

    def watch(self, before: Phase, event: Event, after: Phase) -> None:
        """The machine has taken an event in. before, after: its phases."""
        if before is Phase.STEADY and after is not Phase.STEADY:
            self._since, self._until = self._clock(), None
        elif before is Phase.FORMING and isinstance(event, Began):
            self._until = self._until or self._clock()

    def end(self) -> float:
        """The generation is formed. Returns milliseconds; 0.0 for the first one of all."""
        since, until = self._since, self._until or self._clock()
        self._since, self._until = None, None
        return round(1e3 * (until - since), 1) if since is not None else 0.0

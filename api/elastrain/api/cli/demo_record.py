"""What a followed job told, and what that says of a kill: pause, steps lost. Updates in, figures out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from elastrain.client import Update


@dataclass
class Record:
    """A job's accepted steps with their times, and its events, as they came."""

    steps: dict[int, list[datetime]] = field(default_factory=dict)  # every acceptance of a step, in order
    losses: list[float] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  # the newest of each metric
    events: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, update: Update) -> None:
        if update.kind == "event":
            self.events.append(update.data)
        elif update.kind == "metric":
            values = update.data["values"]
            self.values |= values
            if "loss" in values:  # an evaluation's metrics belong to a step that was accepted before
                self.steps.setdefault(int(update.data["step"]), []).append(moment(update.data["at"]))
                if isinstance(values["loss"], int | float):
                    self.losses.append(float(values["loss"]))

    @property
    def step(self) -> int:
        return max(self.steps, default=0)

    @property
    def first_step_at(self) -> datetime | None:
        return min((times[0] for times in self.steps.values()), default=None)

    def of_type(self, kind: str) -> list[Mapping[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def lost(self, total: int) -> int:
        """Accepted steps that had to be trained again, and steps up to `total` that were never accepted."""
        again = sum(len(times) - 1 for times in self.steps.values())
        never = sum(1 for step in range(1, total + 1) if step not in self.steps)
        return again + never

    def resumed_without(self, worker: str, killed_at: datetime) -> tuple[int, datetime] | None:
        """The first step, and when, that was accepted in a generation formed after the kill without `worker`.

        Not just the next accepted step: that one may have been all but done when the kill came.
        """
        formed = [
            moment(event["at"])
            for event in self.of_type("generation.formed")
            if moment(event["at"]) >= killed_at and worker not in event["data"]["workers"]
        ]
        after = [(times[0], step) for step, times in self.steps.items() if formed and times[0] >= formed[0]]
        return min(after)[::-1] if after else None

    def pause_ms(self, worker: str, killed_at: datetime) -> float | None:
        """From the kill to that step, by the clock of this one machine."""
        resumed = self.resumed_without(worker, killed_at)
        return None if resumed is None else (resumed[1] - killed_at).total_seconds() * 1000


def moment(text: str) -> datetime:
    """RFC 3339 as the API has it."""
    return datetime.fromisoformat(text)

"""What a server has of the workers' pushes, and how a worker knows that all servers have one. Pure.

A push counts as arrived once every server has its part of it whole: owners and buddies alike. So a commit
record, once it exists anywhere, can be carried out by whichever of the two survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from elastrain.trainers.strategies.ledger import Task

Part = TypeVar("Part")


@dataclass
class Shelf(Generic[Part]):
    """Of one server: its parts of pushes that were not applied yet, as they came."""

    servers: tuple[str, ...] = ()  # who kept which blocks when they came
    parts: dict[Task, Part] = field(default_factory=dict)

    def put(self, task: Task, part: Part) -> None:
        """A part is here, whole; one that comes twice is the same."""
        self.parts.setdefault(task, part)

    def take(self, task: Task) -> Part:
        """The part of the push that is applied now. Raises KeyError if it never came: then there is no record
        of it either."""
        return self.parts.pop(task)

    def stay(self, servers: tuple[str, ...]) -> None:
        """A generation begins with these servers. Other servers keep other blocks, and these parts fit none
        of them: their workers push again, or others compute anew."""
        if servers != self.servers:
            self.servers = servers
            self.parts.clear()

    def drop_all_but(self, tasks: Sequence[Task]) -> None:
        self.parts = {task: self.parts[task] for task in tasks if task in self.parts}


def everywhere(shelves: Sequence[Sequence[Task]]) -> list[Task]:
    """The tasks that lie on every server, in the order of the first one. shelves: by rank."""
    common = set(shelves[0]).intersection(*shelves[1:])
    return [task for task in shelves[0] if task in common]


@dataclass
class Delivery:
    """A push on its way: which servers have not said yet that they have it."""

    task: Task
    missing: set[str]

    def acknowledged(self, server: str, task: Task) -> bool:
        """True once: when the last one has said so. Words of another push change nothing."""
        if task != self.task or server not in self.missing:
            return False
        self.missing.discard(server)
        return not self.missing

"""Who computes which step from which version of the parameters, and in which order the results count. Pure.

    deal ─▶ a worker computes it ─▶ its push lies at every server: arrived ─▶ chosen, committed: in the order
      ▲                                                                           │
      └──── a worker that is gone gives back what it had not pushed ◀─────────────┘

The first of the servers keeps a ledger, for one generation. What outlives it is the order: the tasks that
were applied, one after the other. Its length is the version of the parameters, and the staleness of a task is
how many others were applied between the version that it was computed from and its own turn. Given the order,
a run can be repeated bit for bit: it says which step is computed from which version, and what comes next.
Where it ends before the job does, pushes count as they arrive from then on.

Bounded staleness: a task is dealt only if, even should everything that is under way be applied before any one
task, that one were no more than `bound` versions behind, and if its step is no more than `bound` ahead of
the slowest one: stale synchronous parallel (Ho et al., NIPS 2013). The first implies the second until a
worker dies: its step is dealt once more, of a newer version.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

ORDER = "order.safetensors"  # in a checkpoint, (steps, 2) i64: the tasks that were applied, in this order


class Task(NamedTuple):
    step: int  # which global batch of the plan
    version: int  # how many tasks were applied to the parameters that it is computed from


class Replay:
    """An order to repeat, as it is asked at every step: in no more time if it is long, or has a straggler."""

    def __init__(self, order: Sequence[Task]) -> None:
        self.order = order
        self._places = {task: at for at, task in enumerate(order)}
        self._last_use = {task.version: at for at, task in enumerate(order)}
        self._of_version: dict[int, list[int]] = {}  # version -> places of what is computed from it
        for at, task in enumerate(order):
            self._of_version.setdefault(task.version, []).append(at)

    def __len__(self) -> int:
        return len(self.order)

    def ahead(self, task: Task, version: int) -> bool:
        """Is it still to be applied after so many?"""
        return self._places.get(task, -1) >= version

    def computed_from(self, version: int) -> Sequence[int]:
        """Places of the tasks that are."""
        return self._of_version.get(version, ())

    def needs(self, old: int, version: int) -> bool:
        """Is anything of what is still to be applied after `version` computed from the older one?"""
        return self._last_use.get(old, -1) >= version


@dataclass
class Ledger:
    total: int  # steps of the job
    order: list[Task]  # what was applied
    bound: int | None = None  # the most versions that a task may be behind; None: any number
    replay: Replay | None = None
    hands: dict[str, Task | None] = field(default_factory=dict)  # worker -> what it computes
    arrived: dict[Task, str] = field(
        default_factory=dict
    )  # at every server, not applied, as they came: whose

    def __post_init__(self) -> None:
        self._done = {task.step for task in self.order}
        self._low = 0
        self._ready: list[int] = []  # places in the replay that are not over and can be computed by now
        self._seen = 0  # versions below it: what is computed from them is among these

    @property
    def version(self) -> int:
        return len(self.order)

    @property
    def repeats(self) -> Replay | None:
        """What it goes by, as long as there is something left of it."""
        return self.replay if self.replay is not None and self.version < len(self.replay) else None

    @property
    def low(self) -> int:
        """The slowest step: all below it are applied."""
        while self._low in self._done:
            self._low += 1
        return self._low

    @property
    def under_way(self) -> list[Task]:
        """Dealt, and not applied."""
        return [*self.arrived, *(task for task in self.hands.values() if task is not None)]

    # ---- a generation begins ----------------------------------------------------------------

    def stored(self, tasks: Iterable[Task]) -> None:
        """Pushes that every server has from an earlier generation: their workers may be gone."""
        self.arrived.update((task, "") for task in tasks if self._wanted(task))

    def join(self, worker: str, task: Task | None = None) -> None:
        """A worker is there, with what it had in hand when the last generation ended. It keeps that if it is
        still wanted; if not, it waits for another task."""
        self.hands[worker] = task if task is not None and self._wanted(task) else None

    def _wanted(self, task: Task) -> bool:
        if task.step in self._done or any(task.step == other.step for other in self.under_way):
            return False
        if task.version > self.version:  # of a time that was rolled back
            return False
        return self.repeats is None or self.repeats.ahead(task, self.version)

    # ---- while it trains --------------------------------------------------------------------

    def deal(self) -> list[tuple[str, Task]]:
        """Tasks for those who have none. Whose push is not applied yet waits for that; not so in a replay,
        where the push that has to come before it may be nobody's yet."""
        repeats = self.repeats
        waits = set(self.arrived.values()) if repeats is None else set()
        dealt: list[tuple[str, Task]] = []
        for worker in [w for w, task in self.hands.items() if task is None and w not in waits]:
            task = self._next_of(repeats) if repeats is not None else self._next()
            if task is None:
                break
            self.hands[worker] = task
            dealt.append((worker, task))
        return dealt

    def _next(self) -> Task | None:
        under_way, version = self.under_way, self.version
        behind = max((version - task.version + len(under_way) for task in under_way), default=0)
        if self.bound is not None and behind > self.bound:
            return None
        busy = {task.step for task in under_way}
        end = self.total if self.bound is None else min(self.total, self.low + self.bound + 1)
        step = next((s for s in range(self.low, end) if s not in self._done and s not in busy), None)
        return Task(step, version) if step is not None else None

    def _next_of(self, repeats: Replay) -> Task | None:
        while self._seen <= self.version:
            for place in repeats.computed_from(self._seen):
                bisect.insort(self._ready, place)
            self._seen += 1
        del self._ready[: bisect.bisect_left(self._ready, self.version)]
        busy = set(self.under_way)
        return next((task for place in self._ready if (task := repeats.order[place]) not in busy), None)

    def arrive(self, worker: str, step: int) -> bool:
        """A worker's push lies at every server. False: it has no such task: a word that is late, or twice."""
        task = self.hands.get(worker)
        if task is None or task.step != step:
            return False
        self.hands[worker] = None
        self.arrived[task] = worker
        return True

    def choose(self) -> Task | None:
        """Whose turn it is: the first that came, or the one that the replayed order names; None: nobody's."""
        if self.repeats is None:
            return next(iter(self.arrived), None)
        wanted = self.repeats.order[self.version]
        return wanted if wanted in self.arrived else None

    def commit(self, task: Task) -> int:
        """It is applied next. Returns its staleness."""
        staleness = self.version - task.version
        del self.arrived[task]
        self.order.append(task)
        self._done.add(task.step)
        return staleness

    def gone(self, worker: str) -> None:
        """A worker is gone: what it had in hand is dealt again. Its push, if it lies everywhere, counts."""
        self.hands.pop(worker, None)

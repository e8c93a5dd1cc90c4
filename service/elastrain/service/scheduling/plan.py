"""The rules in their order; each has its reason in docs/scheduling.md.

1. what a job holds stays its own; what it was told to give back is nobody's until it is back
2. in the order of the queue each job gets its minimum and its spares, all or nothing
   a. from what is free
   b. else what others are giving back is kept for it
   c. else elastic jobs shrink for it, and then jobs of lower priority are preempted
   d. else it waits, and wherever it could run one day, nobody behind it goes first
3. a project above its quota, since that was lowered, shrinks
4. what is left goes where it gains most, and is moved only if that matters
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elastrain.service.jobs import Reason
from elastrain.service.scheduling.asks import BEHIND, Answer, Ask, Grant, Node, Policy, Preempt, Stage, Wait
from elastrain.service.scheduling.order import BREATH, in_order
from elastrain.service.scheduling.reclaim import make_room
from elastrain.service.scheduling.room import BOTH, SOON, Room
from elastrain.service.scheduling.sentences import blocked, needs, never, over_quota, promised
from elastrain.service.scheduling.spare import hand_out, to_move

# so many waiting jobs get a sentence of their own; those behind them are only told that they are
DETAILED = 50
# for so many jobs in a round others may be asked to make room
RECLAIMS = 10


@dataclass
class Plan:
    """answers: of every job but those that leave or rest. queue: ids of those that wait, first first.
    first: the job that all others wait behind."""

    answers: dict[str, Answer] = field(default_factory=dict)
    queue: list[str] = field(default_factory=list)
    first: Ask | None = None


def plan(
    asks: Sequence[Ask],
    nodes: Sequence[Node],
    policy: Policy | None = None,
    breathe: Callable[[], None] = lambda: None,
) -> Plan:
    """Pure: the same facts give the same plan. breathe: is called often, to let others compute."""
    return _Round(asks, nodes, policy or Policy(), breathe).run()


class _Round:
    def __init__(
        self, asks: Sequence[Ask], nodes: Sequence[Node], policy: Policy, breathe: Callable[[], None]
    ) -> None:
        self._policy, self._breathe = policy, breathe
        self._active, self._waiting = list[Ask](), list[Ask]()
        for ask in asks:  # thousands wait: once
            (self._waiting if ask.stage in (Stage.WAITING, Stage.RESTING) else self._active).append(ask)
        breathe()
        self._room = Room(nodes, policy, self._active)
        breathe()
        self._leaving = [ask for ask in self._active if _gives(ask)]
        self._workers = {ask.id: ask.held for ask in self._active if ask.stage is Stage.RUNNING}
        self._whys: dict[str, str] = {}
        self._starting: list[Ask] = []
        self._first: Ask | None = None
        self._hopeless: dict[tuple[object, ...], int] = {}
        self._blocked: set[tuple[object, ...]] = set()
        self._behinds: dict[int, Wait] = {}
        self._reclaims = 0
        self._plan = Plan()

    def run(self) -> Plan:
        breathe = self._breathe
        short = [ask for ask in self._active if ask.stage is Stage.RUNNING and ask.held < ask.min]
        for number, ask in enumerate(in_order([*self._waiting, *short], self._room, self._policy, breathe)):
            if number < DETAILED or not number % BREATH:
                breathe()
            if ask.stage is Stage.RUNNING:
                self._lift(ask)
                continue
            if ask.stage is Stage.WAITING:
                self._serve(ask, number)
            if ask.id not in self._workers:
                self._plan.queue.append(ask.id)
        self._keep_quotas()
        breathe()
        self._spare()
        breathe()
        answers = {id: Grant(workers, self._whys.get(id, "")) for id, workers in self._workers.items()}
        self._plan.answers = {**answers, **self._plan.answers}
        self._plan.first = self._first
        return self._plan

    # -- minima

    def _serve(self, ask: Ask, number: int) -> None:
        groups = ask.least // ask.per_group
        if self._take(ask, groups, driver=True):
            self._workers[ask.id] = ask.min
            self._starting.append(ask)
            return
        kind = (ask.shape, ask.retinue, groups, ask.project)
        if number >= DETAILED and kind in self._blocked:
            self._plan.answers[ask.id] = self._behind(ask)
            return
        wait = self._wait(ask, groups)
        if wait.reason in (Reason.NO_CAPACITY, Reason.BEHIND_OTHER_JOBS):
            self._blocked.add(kind)
            wait = wait if number < DETAILED else self._behind(ask)
        self._plan.answers[ask.id] = wait

    def _behind(self, ask: Ask) -> Wait:
        """One for all that lack as many."""
        if ask.least not in self._behinds:
            self._behinds[ask.least] = Wait(Reason.BEHIND_OTHER_JOBS, BEHIND, ask.least)
        return self._behinds[ask.least]

    def _take(self, ask: Ask, groups: int, driver: bool) -> bool:
        """From what is free. What did not fit once in this round does not fit later: room only shrinks."""
        shape = (ask.shape, driver and ask.retinue, driver)
        if groups >= self._hopeless.get(shape, groups + 1):
            return False
        if self._room.take(ask, groups, BOTH, driver):
            return True
        if self._room.allowed(ask, groups) >= groups:
            self._hopeless[shape] = groups
        return False

    def _wait(self, ask: Ask, groups: int) -> Wait:
        if (why := never(ask, self._room)) is not None:
            return why
        answer = self._promise(ask, groups, driver=True)
        if answer is not None:
            self._first = self._first or ask
            return answer
        if not self._may(ask, groups):
            return over_quota(ask, self._room, self._policy)
        answer = blocked(ask, self._room, self._first)
        self._first = self._first or ask
        self._room.keep_for(ask, groups)
        return answer

    def _promise(self, ask: Ask, groups: int, driver: bool) -> Wait | None:
        """Room that comes back from others, kept for this job; None if there is not enough of it."""
        said = promised(ask, self._room, self._leaving)
        if self._room.take(ask, groups, (SOON,), driver):
            return said
        if self._reclaims >= RECLAIMS:
            return None
        self._reclaims += 1
        running = [
            other
            for other in self._active
            if other.stage is Stage.RUNNING and isinstance(self._plan.answers.get(other.id, Grant(0)), Grant)
        ]
        reclaimed = make_room(ask, groups, driver, running, self._room)
        if reclaimed is None:
            return None
        self._hopeless.clear()  # now and then a whole group more came free than was needed
        by_id = {other.id: other for other in running}
        for id in reclaimed.preempted:
            why = f"which has priority {ask.priority} and needs {needs(ask)}"
            self._plan.answers[id] = Preempt(f"preempted for {ask.title_for(by_id[id])}, {why}")
            self._workers.pop(id)
        for id, lost in reclaimed.shrunk.items():
            self._workers[id] -= lost * by_id[id].per_group
            self._whys[id] = f"for {ask.title_for(by_id[id])}, which needs {needs(ask)}"
        givers = [*self._leaving, *(by_id[id] for id in (*reclaimed.shrunk, *reclaimed.preempted))]
        return Wait(said.reason, promised(ask, self._room, givers).message, said.short_of)

    def _lift(self, ask: Ask) -> None:
        """A running job whose minimum was raised, or that had to start below it."""
        if ask.id not in self._workers:
            return
        groups = (ask.min - self._workers[ask.id]) // ask.per_group
        if self._take(ask, groups, driver=False):
            self._workers[ask.id] = ask.min
        elif self._promise(ask, groups, driver=False) is None and self._may(ask, groups):
            self._first = self._first or ask
            self._room.keep_for(ask, groups)

    def _may(self, ask: Ask, groups: int) -> bool:
        """Whether the project's quota would allow it once everything is back that was asked back."""
        return self._room.allowed(ask, groups, (SOON,)) >= groups

    # -- the rest

    def _running(self) -> list[Ask]:
        return [ask for ask in self._active if ask.stage is Stage.RUNNING and ask.id in self._workers]

    def _keep_quotas(self) -> None:
        """Give up what a project has beyond its quota, as far as that is beyond the minima."""
        for ask in sorted(self._running(), key=lambda ask: (ask.priority, -ask.since, ask.id)):
            while self._workers[ask.id] - ask.per_group >= ask.min and self._over(ask):
                self._room.release(ask)
                self._workers[ask.id] -= ask.per_group
                self._whys[ask.id] = f"the project {ask.project} is above its quota"

    def _over(self, ask: Ask) -> bool:
        quota, (workers, gpus) = self._policy.project(ask.project).quota, self._room.used(ask.project)
        too_many = quota.workers is not None and workers > quota.workers
        return too_many or (quota.gpus is not None and ask.gpus > 0 and gpus > quota.gpus)

    def _spare(self) -> None:
        jobs = [*self._running(), *self._starting]
        jobs = [ask for ask in jobs if self._workers[ask.id] >= ask.min]
        shrinking = set(self._whys)
        have, ideal = hand_out(jobs, self._workers, shrinking, self._room, self._policy)
        self._workers |= have
        steady = [ask for ask in jobs if ask.stage is Stage.RUNNING and ask.id not in shrinking]
        for id, workers in to_move(steady, self._workers, ideal, self._policy.now).items():
            self._workers[id] = workers
            self._whys[id] = "they gain more elsewhere"


def _gives(ask: Ask) -> bool:
    """Whether it is giving something back."""
    return ask.stage is Stage.LEAVING or ask.holds > ask.held + ask.spares

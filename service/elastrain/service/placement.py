"""The scheduler's answers, written down: who starts, grows, shrinks or is preempted, who waits and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from elastrain.service import points
from elastrain.service.changes import Changes
from elastrain.service.commands import want
from elastrain.service.jobs import Desired, Reason, Signal, Status, advance
from elastrain.service.look import STEADY_S
from elastrain.service.meters import Meters
from elastrain.service.pace import Breath
from elastrain.service.ray_jobs import RayNode
from elastrain.service.scheduling import Answer, Grant, Plan, Preempt, Stage, Wait, facts, plan
from elastrain.service.scheduling.asks import BEHIND, Resources
from elastrain.service.scheduling.ceiling import Shape
from elastrain.service.scheduling.order import BREATH
from elastrain.service.scheduling.sentences import needs
from elastrain.service.store import Store, Tx, feed, jobs, plans, queued
from elastrain.service.store.plans import First
from elastrain.service.store.rows import JobRow, WaitingRow

# a job that was preempted says so until it runs again, whatever it waits for meanwhile
KEPT = dict.fromkeys((Reason.NO_CAPACITY, Reason.BEHIND_OTHER_JOBS, Reason.RAY_UNREACHABLE), Reason.PREEMPTED)
# jobs in one statement
AT_ONCE = 200
# (reason until now, version of what is desired, reason, message, short of) -> the jobs
Silent = dict[tuple[str, int, Reason, str, int], list[WaitingRow]]


class Placement:
    def __init__(
        self,
        store: Store,
        driver: Resources,
        ceiling: Sequence[Shape],
        changes: Changes,
        meters: Meters,
    ) -> None:
        self._store = store
        self._driver = driver
        self._ceiling = ceiling
        self._changes = changes
        self._meters = meters
        self._lately: deque[tuple[float, dict[str, float]]] = deque()
        self._known = facts.Known()

    def place(self, nodes: Sequence[RayNode], error: str | None, now: float, admitting: bool) -> list[str]:
        """Ids of the jobs that may start now. error: why Ray cannot be reached. admitting: whether anything
        may start or change; what waits says why in any case."""
        breathe = Breath()
        with self._store.read() as tx:
            known = facts.read(tx, now, self._known, breathe)
        made = self._plan(known, nodes, error, now, breathe)
        first = known.plan.first if error is not None else _first(made)
        wanted = _news(known, made.answers, breathe)
        if not admitting:
            wanted = {id: answer for id, answer in wanted.items() if isinstance(answer, Wait)}
        if not wanted and (made.queue, first) == (known.plan.queue, known.plan.first):
            return []
        silent = _silent(known, wanted)
        breathe()
        try:
            started = self._write(known, made.queue, first, wanted, silent, now)
        except plans.NotOurTurn:
            return []  # the next round sees what the other process has done
        points.reach("the plan is written")
        self._tell_why(silent, breathe)
        return started

    def _plan(
        self,
        known: facts.Facts,
        nodes: Sequence[RayNode],
        error: str | None,
        now: float,
        breathe: Callable[[], None],
    ) -> Plan:
        if error is not None:
            waiting = [ask.id for ask in known.asks if ask.stage is Stage.WAITING]
            return Plan(dict.fromkeys(waiting, facts.ray_unreachable(error)), known.plan.queue)
        seen = [node.view() for node in nodes]
        ours, lately = known.occupying, self._held(known, now)
        there = facts.nodes_of(seen, ours, self._driver, self._ceiling, lately)
        return plan(known.asks, there, known.policy(self._driver, now), breathe)

    def _held(self, known: facts.Facts, now: float) -> dict[str, float]:
        """The most that our jobs held lately: Ray shows it as used for a while after it was given back."""
        self._lately.append((now, facts.ours_of(known.occupying, self._driver)))
        while not 0 <= now - self._lately[0][0] <= STEADY_S:  # below 0: the clock was set back
            self._lately.popleft()
        names = {name for _, held in self._lately for name in held}
        return {name: max(held.get(name, 0.0) for _, held in self._lately) for name in names}

    def _write(
        self,
        known: facts.Facts,
        queue: list[str],
        first: First | None,
        wanted: Mapping[str, Answer],
        silent: Silent,
        now: float,
    ) -> list[str]:
        """All that is an event of a job, together with the plan."""
        started, waited_s = set[str](), list[float]()
        alone = wanted.keys() - {row.id for rows in silent.values() for row in rows}
        with self._store.write() as tx:
            plans.take_turn(tx, known.plan.version, queue, first, now)
            for id in sorted(alone):  # as whoever locks several: two that meet do not wait for each other
                current, answer = jobs.lock(tx, id), wanted[id]
                if known.still(current):
                    _write(tx, current, answer, now)
                    if current.status is Status.QUEUED and isinstance(answer, Grant):
                        started.add(id)
                        waited_s.append(now - current.since)
        for id in alone:
            self._changes.tell(id)
        for seconds in waited_s:
            self._meters.queue_s.observe(max(0.0, seconds))
        return [id for id in wanted if id in started]

    def _tell_why(self, silent: Silent, breathe: Callable[[], None]) -> None:
        """Jobs that wait alike are told so in one statement, and submits go between two of those."""
        for said, rows in silent.items():
            for first in range(0, len(rows), AT_ONCE):
                some = rows[first : first + AT_ONCE]
                with self._store.write() as tx:
                    queued.tell_why(tx, [row.id for row in some], some[0], *said[2:])
                points.reach("some are told why they wait")
                for row in some:
                    self._changes.tell(row.id)
                breathe()


def _first(made: Plan) -> First | None:
    """Whom the others wait behind, as it is written down."""
    return First(made.first.id, made.first.title, needs(made.first)) if made.first is not None else None


def _news(
    known: facts.Facts, answers: Mapping[str, Answer], breathe: Callable[[], None]
) -> dict[str, Answer]:
    """Those answers with which there is something to write."""
    found: dict[str, Answer] = {}
    told: dict[tuple[int, str, str | None, int], bool] = {}  # thousands wait alike, and say so already
    for number, (job, answer) in enumerate(answers.items()):
        if not number % BREATH:
            breathe()
        if isinstance(answer, Wait):
            row = known.waiting[job]
            kind = (id(answer), row.reason, row.message, row.short_of)
            if (new := told.get(kind)) is None:
                new = told[kind] = kind[1:] != _waiting(row.reason, answer)
        else:
            before = known.active[job].workers_target if job in known.active else 0
            new = isinstance(answer, Preempt) or answer.workers != before
        if new:
            found[job] = answer
    return found


def _silent(known: facts.Facts, wanted: Mapping[str, Answer]) -> Silent:
    """Those that wait on, and for which nothing happens but that it is said why: thousands, after a while
    without rounds."""
    found: Silent = {}
    for id, answer in wanted.items():
        if isinstance(answer, Wait):
            row = known.waiting[id]
            said = _waiting(row.reason, answer)
            if said[0] in (row.reason, Reason.BEHIND_OTHER_JOBS):
                found.setdefault((row.reason, row.desired_version, *said), []).append(row)
    return found


def _waiting(before: str, answer: Wait) -> tuple[Reason, str, int]:
    """Of those that wait behind another the views name it: it changes, and they are many. before: the reason
    until now."""
    message = BEHIND if answer.reason is Reason.BEHIND_OTHER_JOBS else answer.message
    reason = KEPT.get(answer.reason, answer.reason) if before == Reason.PREEMPTED else answer.reason
    return reason, message, answer.short_of


def _write(tx: Tx, row: JobRow, answer: Answer, now: float) -> None:
    if isinstance(answer, Wait):
        _wait(tx, row, answer, now)
    elif isinstance(answer, Preempt):
        if move := advance(row.status, Signal.ASK_PREEMPT):
            want(tx, row, move, Desired.PREEMPT, answer.why, "service", now)
    elif row.status is Status.QUEUED:
        if move := advance(row.status, Signal.START):
            values = {"workers_target": answer.workers, "short_of": 0, "grown_at": 0.0, "shrunk_at": 0.0}
            jobs.move(tx, row, move.status, move.reason, None, "service", now, **values)
    else:
        _resize(tx, row, answer, now)


def _wait(tx: Tx, row: JobRow, answer: Wait, now: float) -> None:
    reason, message, short_of = _waiting(row.reason, answer)
    jobs.change(tx, row.id, reason=reason, message=message, short_of=short_of)
    if row.reason != reason and reason is not Reason.BEHIND_OTHER_JOBS:
        data = {"reason": reason.value, "short_of": short_of}
        feed.add_event(tx, row.id, "job.waiting", message, data, now)


def _resize(tx: Tx, row: JobRow, answer: Grant, now: float) -> None:
    """What it held stays counted as its own until its driver says that it is back."""
    before, spares = row.workers_target, int(row.spec["workers"].get("spares", 0))
    grows = answer.workers > before
    jobs.change(
        tx,
        row.id,
        workers_target=answer.workers,
        workers_held=max(row.workers_held, max(before, answer.workers) + spares),
        desired_version=row.desired_version + 1,
        **{"grown_at" if grows else "shrunk_at": now},
    )
    why = f": {answer.why}" if answer.why else ""
    text = f"{answer.workers} workers are granted now, {before} were before{why}"
    data = {"from": before, "to": answer.workers, "why": answer.why or None}
    feed.add_event(tx, row.id, "job.target", text, data, now)

"""From rows of the store, and from what Ray shows, to what the scheduler is asked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastrain.service.jobs import ACTIVE, Reason, Status
from elastrain.service.scheduling.asks import (
    LABEL,
    Answer,
    Ask,
    Node,
    Policy,
    Project,
    Quota,
    Resources,
    Stage,
    Wait,
)
from elastrain.service.scheduling.ceiling import Shape, addable
from elastrain.service.scheduling.curve import curve_of
from elastrain.service.scheduling.order import BREATH
from elastrain.service.scheduling.plan import plan
from elastrain.service.store import Tx, attempts, jobs, plans, projects, queued, training
from elastrain.service.store.plans import PlanRow
from elastrain.service.store.rows import JobRow, ProjectRow, WaitingRow
from elastrain.trainers.spec import SERVER_CPU, worker_takes

# jobs that are gone through without a pause where little is done with each
MANY = 1000
STAGES = {
    Status.STARTING: Stage.RUNNING,
    Status.RUNNING: Stage.RUNNING,
    Status.PAUSING: Stage.LEAVING,
    Status.CANCELLING: Stage.LEAVING,
}


@dataclass(frozen=True)
class Facts:
    """What the store knows, in one reading. asks: of the active jobs, then of the waiting ones. plan: the one
    that was made last."""

    active: dict[str, JobRow]
    waiting: dict[str, WaitingRow]
    asks: list[Ask]
    projects: list[ProjectRow]
    plan: PlanRow

    def still(self, row: JobRow) -> bool:
        """Whether the job is where it was then, and nobody has asked anything of it since."""
        if row.status is Status.QUEUED:
            seen = self.waiting.get(row.id)
            return seen is not None and seen.desired_version == row.desired_version
        before = self.active.get(row.id)
        now = (row.status, row.desired_version)
        return before is not None and (before.status, before.desired_version) == now

    @property
    def occupying(self) -> list[Ask]:
        """Those that have workers, or are giving them back."""
        return self.asks[: len(self.active)]

    def policy(self, driver: Resources, now: float) -> Policy:
        known = {
            row.name: Project(Quota(row.quota_workers, row.quota_gpus), row.weight) for row in self.projects
        }
        return Policy(known, driver, now)


class Known:
    """What was made of the queued jobs in the reading before: of ten thousand, few have changed since."""

    def __init__(self) -> None:
        self._asks: dict[str, tuple[tuple[Any, ...], Ask]] = {}

    def asks(
        self, tx: Tx, rows: Sequence[WaitingRow], breathe: Callable[[], None] = lambda: None
    ) -> list[Ask]:
        """What a spec says about its job's size stays as it is for as long as the job waits."""
        known = self._asks  # another thread may be here as well
        specs = queued.specs(tx, [row.id for row in rows if row.id not in known], breathe)
        found: dict[str, tuple[tuple[Any, ...], Ask]] = {}
        for number, row in enumerate(rows):
            if not number % BREATH:
                breathe()
            asked = (row.priority, row.queued_at, row.workers_min, row.workers_max, row.curve)
            before = known.get(row.id)
            if before is None or before[0] != asked:
                base = new_ask(row.id, specs[row.id], row.queued_at) if before is None else before[1]
                before = (asked, _ask_of(row, base))
            found[row.id] = before
        self._asks = found
        return [ask for _, ask in found.values()]


def read(tx: Tx, now: float, known: Known | None = None, breathe: Callable[[], None] = lambda: None) -> Facts:
    """A job whose last driver is still leaving rests, and so does one that waits for its next attempt."""
    active, waiting = jobs.in_status(tx, ACTIVE, breathe), queued.rows(tx, breathe)
    leaving = {attempt.job for attempt in attempts.with_driver(tx)}
    breathe()
    asks, rows = _active_asks(tx, active), dict[str, WaitingRow]()
    for row, ask in zip(waiting, (known or Known()).asks(tx, waiting, breathe), strict=True):
        rests = row.id in leaving or row.next_attempt_at > now
        asks.append(replace(ask, stage=Stage.RESTING) if rests else ask)
        rows[row.id] = row
        if not len(asks) % MANY:
            breathe()
    plan_before = plans.read(tx)
    breathe()
    return Facts({row.id: row for row in active}, rows, asks, projects.every(tx), plan_before)


def running(tx: Tx) -> list[Ask]:
    """What those ask that have workers, or are giving them back."""
    return _active_asks(tx, jobs.in_status(tx, ACTIVE))


def new_ask(id: str, spec: Mapping[str, Any], since: float) -> Ask:
    """Of a job that nobody has looked at yet."""
    workers, wants, strategy = spec["workers"], spec["resources"], spec["strategy"]
    server_cpu = float(strategy.get("server_cpu", SERVER_CPU))  # a spec may be older than the field
    labels = dict.fromkeys(as_resources(wants.get("labels") or {}), 1.0)
    return Ask(
        id,
        spec["name"],
        min=workers["min"],
        max=workers["max"],
        per_group=workers["per_group"],
        worker=worker_takes(wants) | labels,
        spares=workers.get("spares", 0),
        servers=int(strategy.get("servers", 0)),
        server=({"CPU": server_cpu} if server_cpu > 0 else {}) | labels,
        project=spec["project"],
        priority=spec["priority"],
        since=since,
    )


def _ask_of(row: JobRow | WaitingRow, base: Ask) -> Ask:
    return replace(
        base,
        since=row.queued_at,
        min=row.workers_min,
        max=row.workers_max,
        priority=row.priority,
        curve=curve_of(row.curve["points"] if row.curve else {}),
    )


def _active_asks(tx: Tx, rows: Sequence[JobRow]) -> list[Ask]:
    places = training.places(tx)
    return [_active_ask(row, places.get(row.id, ())) for row in rows]


def _active_ask(row: JobRow, places: Sequence[str]) -> Ask:
    ask = _ask_of(row, new_ask(row.id, row.spec, row.queued_at))
    return replace(
        ask,
        stage=STAGES[row.status],
        held=row.workers_target,
        holds=max(row.workers_held, row.workers_target + ask.spares),
        places=tuple(places),
        grown_at=row.grown_at,
        shrunk_at=row.shrunk_at,
    )


def nodes_of(
    seen: Iterable[Mapping[str, Any]],
    asks: Sequence[Ask],
    driver: Resources,
    ceiling: Sequence[Shape] = (),
    before: Resources | None = None,
) -> list[Node]:
    """seen: nodes as {id, alive, resources, used}. Those follow that the autoscaler could still add."""
    living = [node for node in seen if node["alive"]]
    others = others_of(living, asks, driver, before or {})
    nodes = [
        Node(
            node["id"],
            node["resources"] | dict.fromkeys(as_resources(node.get("labels") or {}), math.inf),
            others.get(node["id"], {}),
        )
        for node in living
    ]
    return [*nodes, *addable(ceiling, nodes)]


def as_resources(labels: Mapping[str, str]) -> list[str]:
    """A label that a worker must find on its node, as something that the node has and nobody uses up."""
    return [f"{LABEL}{name}={value}" for name, value in labels.items()]


def ours_of(asks: Sequence[Ask], driver: Resources) -> dict[str, float]:
    """What our jobs hold, drivers included."""
    ours: defaultdict[str, float] = defaultdict(float)
    for ask in asks:
        if ask.stage in (Stage.RUNNING, Stage.LEAVING):
            whole = ask.whole(max(ask.holds, ask.held + ask.spares))
            for name, amount in (*driver.items(), *whole.items()):
                ours[name] += amount
    return dict(ours)


def others_of(
    living: Sequence[Mapping[str, Any]], asks: Sequence[Ask], driver: Resources, before: Resources
) -> dict[str, dict[str, float]]:
    """{node: {resource: what is used there by none of our jobs}}

    What our jobs may be using on the whole is known for certain, where they use it only once their drivers
    have said so: what is left when the first is taken off is divided as the second says. before: what they
    held a moment ago, and Ray may still show.
    """
    ours = {name: max(amount, before.get(name, 0.0)) for name, amount in ours_of(asks, driver).items()}
    ours = {**before, **ours}
    there: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for ask in asks:
        if ask.stage not in (Stage.RUNNING, Stage.LEAVING):
            continue
        for name, amount in ask.worker.items():
            for node in ask.places:
                there[node][name] += amount * ask.per_group
    found: dict[str, dict[str, float]] = {node["id"]: {} for node in living}
    for name in {name for node in living for name in node["used"]}:
        beyond = {
            node["id"]: max(0.0, node["used"].get(name, 0.0) - there[node["id"]][name]) for node in living
        }
        total = max(0.0, sum(node["used"].get(name, 0.0) for node in living) - ours.get(name, 0.0))
        apparent = sum(beyond.values())
        for id, amount in beyond.items():
            if amount > 0 and total > 0:
                found[id][name] = amount * min(1.0, total / apparent)
    return found


def ray_unreachable(detail: str) -> Wait:
    return Wait(Reason.RAY_UNREACHABLE, f"Ray cannot be reached: {detail}. The job starts once it is back")


def plan_one(
    ask: Ask,
    facts: Facts,
    cluster: Mapping[str, Any] | None,
    driver: Resources,
    breathe: Callable[[], None] = lambda: None,
) -> Answer:
    """What a job would get if it were submitted now. cluster: as the reconciler last saw it."""
    if cluster is None or not cluster["reachable"]:
        return ray_unreachable(cluster["detail"] if cluster else "nobody has looked yet")
    ceiling = [Shape.of(item) for item in cluster.get("capacity_max") or ()]
    nodes = nodes_of(cluster["nodes"], facts.occupying, driver, ceiling)
    return plan([*facts.asks, ask], nodes, facts.policy(driver, ask.since), breathe).answers[ask.id]

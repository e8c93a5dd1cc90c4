"""Who gets how many workers: a pure function of the jobs and of what the cluster has.

    1. what active jobs hold stays theirs
    2. in the order of the queue (priority, then age) each waiting job gets its minimum and its spares, if
       they fit; the first that could fit but does not holds back those behind it, so that it is not starved
    3. if nobody is held back, what is left goes to the jobs in the same order, up to their maximum

Workers of a group share a node, so groups are packed, not counted. Taking workers back from running jobs for
a waiting one is not done yet. Every job that waits gets a reason and a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastrain.service.jobs import ACTIVE, Reason, Status
from elastrain.service.store.rows import JobRow

Resources = dict[str, float]
# 0.1 + 0.2 CPUs are 0.3
EPSILON = 1e-6


@dataclass(frozen=True)
class Node:
    """A living node and what it has, in Ray's names: {"CPU": 8, "GPU": 1}."""

    id: str
    resources: Resources


@dataclass(frozen=True)
class Ask:
    """What a job wants. held: workers that it has been given already, 0 while it waits. spares: workers that
    stand by, beside however many it gets; they are reserved with the first of them."""

    id: str
    name: str
    min: int
    max: int
    per_group: int
    worker: Resources
    held: int = 0
    spares: int = 0

    @property
    def group(self) -> Resources:
        """What one group needs, on one node."""
        return {name: amount * self.per_group for name, amount in self.worker.items() if amount > 0}


@dataclass(frozen=True)
class Grant:
    workers: int


@dataclass(frozen=True)
class Wait:
    """Why a job gets nothing now; `short_of`: workers that it lacks for its minimum."""

    reason: Reason
    message: str
    short_of: int = 0


Answer = Grant | Wait


def plan(asks: Sequence[Ask], nodes: Sequence[Node], driver_cpu: float = 0.0) -> dict[str, Answer]:
    """asks: in the order of the queue. driver_cpu: CPUs that each active job's driver takes."""
    free, driver = _Free(nodes), {"CPU": driver_cpu} if driver_cpu > 0 else {}
    granted: dict[str, int] = {}
    answers: dict[str, Answer] = {}
    for ask in (ask for ask in asks if ask.held):
        free.take(driver, 1)
        free.take(ask.group, (ask.held + ask.spares) // ask.per_group)
        granted[ask.id] = ask.held
    held_back: Ask | None = None
    for ask in (ask for ask in asks if not ask.held):
        answer = _first_workers(ask, free, driver, nodes, held_back)
        if isinstance(answer, Grant):
            granted[ask.id] = answer.workers
        else:
            answers[ask.id] = answer
            if held_back is None and answer.reason is Reason.NO_CAPACITY:
                held_back = ask
    for ask in asks if held_back is None else ():
        if ask.id in granted:
            more = free.take(ask.group, max(0, ask.max - granted[ask.id]) // ask.per_group)
            granted[ask.id] += more * ask.per_group
    return answers | {id: Grant(workers) for id, workers in granted.items()}


def plan_one(ask: Ask, alive: Iterable[JobRow], cluster: Mapping[str, Any] | None) -> Answer:
    """What a job would get if it were submitted now. cluster: as the reconciler last saw it."""
    if cluster is None or not cluster["reachable"]:
        return ray_unreachable(cluster["detail"] if cluster else "nobody has looked yet")
    waiting = (Status.QUEUED, *ACTIVE)
    asks = [ask_of(row) for row in alive if row.status in waiting]
    return plan([*asks, ask], nodes_of(cluster))[ask.id]


def ask_of(row: JobRow) -> Ask:
    held = row.workers_target if row.status in ACTIVE else 0
    most = held if row.status in (Status.PAUSING, Status.CANCELLING) else row.workers_max
    ask = new_ask(row.id, row.name, row.spec)
    return Ask(ask.id, ask.name, row.workers_min, most, ask.per_group, ask.worker, held, ask.spares)


def new_ask(id: str, name: str, spec: Mapping[str, Any]) -> Ask:
    workers, wants = spec["workers"], spec["resources"]
    worker = {"CPU": float(wants["cpu"]), "GPU": float(wants["gpu"])}
    size = (workers["min"], workers["max"], workers["per_group"])
    return Ask(id, name, *size, worker, spares=workers.get("spares", 0))


def nodes_of(cluster: Mapping[str, Any]) -> list[Node]:
    return [Node(node["id"], node["resources"]) for node in cluster["nodes"] if node["alive"]]


def ray_unreachable(detail: str) -> Wait:
    return Wait(Reason.RAY_UNREACHABLE, f"Ray cannot be reached: {detail}. The job starts once it is back")


def _first_workers(
    ask: Ask, free: _Free, driver: Resources, nodes: Sequence[Node], held_back: Ask | None
) -> Answer:
    least = ask.min + ask.spares
    need = least // ask.per_group
    empty = _Free(nodes)
    empty.take(driver, 1)
    could = empty.fits(ask.group, need)
    if not nodes:
        message = "Ray has no node yet: it is still starting, or its nodes are gone"
        return Wait(Reason.DOES_NOT_FIT, message, least)
    if could < need:
        most = could * ask.per_group
        message = f"It needs at least {_workers(ask)}; all nodes together, empty, would hold {most}"
        return Wait(Reason.DOES_NOT_FIT, message, least - most)
    if held_back is not None:
        message = (
            f"It waits behind {held_back.id} ({held_back.name}), which needs at least {_workers(held_back)}"
        )
        return Wait(Reason.BEHIND_OTHER_JOBS, message)
    fits = free.fits(ask.group, need) if free.fits(driver, 1) else 0
    if fits < need:
        now = fits * ask.per_group
        message = f"It needs at least {_workers(ask)}; {now} would fit now beside the jobs that run"
        return Wait(Reason.NO_CAPACITY, message, least - now)
    free.take(driver, 1)
    free.take(ask.group, need)
    return Grant(ask.min)


def _workers(ask: Ask) -> str:
    plural = "worker" if ask.min == 1 else "workers"
    each = ", ".join(f"{amount:g} {name}" for name, amount in ask.worker.items() if amount > 0)
    shape = f" in groups of {ask.per_group} on one node" if ask.per_group > 1 else ""
    beside = f" and {ask.spares} spare{'s' if ask.spares > 1 else ''}" if ask.spares else ""
    return f"{ask.min} {plural}{beside} with {each} each{shape}"


class _Free:
    """What is left of the nodes, as groups are placed on them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = [dict(node.resources) for node in nodes]

    def fits(self, group: Resources, wanted: int) -> int:
        """How many such groups could be placed, up to `wanted`."""
        if not group:
            return wanted
        return min(wanted, sum(_count(node, group) for node in self._nodes))

    def take(self, group: Resources, wanted: int) -> int:
        """Place up to `wanted` groups, fullest node last; returns how many found a place."""
        if not group:
            return wanted
        placed = 0
        while placed < wanted:
            node = max(self._nodes, key=lambda left: _count(left, group), default=None)
            if node is None or _count(node, group) == 0:
                break
            for name, amount in group.items():
                node[name] -= amount
            placed += 1
        return placed


def _count(node: Resources, group: Resources) -> int:
    return max(0, int(min((node.get(name, 0.0) + EPSILON) // amount for name, amount in group.items())))

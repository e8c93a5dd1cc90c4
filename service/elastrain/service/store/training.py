"""What the attempts report about themselves: workers, generations, checkpoints."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, delete, func, insert, select, update

from elastrain.service.jobs import ACTIVE
from elastrain.service.store.engine import Tx
from elastrain.service.store.schema import checkpoints, generations, jobs, workers

Row = dict[str, Any]
# groups of workers that are there in current attempts; those of servers are named s0, s1, ...
_THERE = (
    select(workers.c.job, workers.c.group, workers.c.node)
    .join(jobs, (jobs.c.id == workers.c.job) & (jobs.c.attempt == workers.c.attempt))
    .where(jobs.c.status.in_([status.value for status in ACTIVE]))
    .where(workers.c.state.not_in(["ended", "lost"]), workers.c.node.is_not(None))
    .where(workers.c.id.not_like("s%"))
    .distinct()
)


def put_worker(tx: Tx, job: str, attempt: int, id: str, values: Row) -> None:
    """Set what the fact says about a worker; what it does not say stays as it was."""
    _put(tx, workers, {"job": job, "attempt": attempt, "id": id}, {"state": "starting"}, values)


def put_generation(tx: Tx, job: str, attempt: int, generation: int, values: Row) -> None:
    defaults = {"step": 0, "workers": [], "cause": "", "formed_at": 0.0}
    _put(tx, generations, {"job": job, "attempt": attempt, "generation": generation}, defaults, values)


def put_checkpoint(tx: Tx, job: str, step: int, values: Row) -> None:
    """A checkpoint that was deleted from storage is no longer listed."""
    if values.get("state") == "deleted":
        tx.execute(delete(checkpoints).where(checkpoints.c.job == job, checkpoints.c.step == step))
        return
    defaults = {"bytes": 0, "metrics": {}, "files": [], "state": "saved", "created_at": 0.0, "pinned": False}
    _put(tx, checkpoints, {"job": job, "step": step}, {**defaults, "attempt": 0}, values)


def list_workers(tx: Tx, job: str, attempt: int) -> list[Row]:
    query = select(workers).where(workers.c.job == job, workers.c.attempt == attempt)
    rows = [dict(row._mapping) for row in tx.execute(query)]
    return sorted(rows, key=lambda row: (len(row["id"]), row["id"]))  # w2 before w10


def nodes_of(tx: Tx, job: str, attempt: int) -> set[str]:
    """Nodes on which workers of this attempt were."""
    c = workers.c
    query = select(c.node).where(c.job == job, c.attempt == attempt, c.node.is_not(None)).distinct()
    return set(tx.execute(query).scalars())


def list_generations(tx: Tx, job: str, after: tuple[int, int], limit: int) -> list[Row]:
    """Oldest first, after (attempt, generation)."""
    c = generations.c
    newer = (c.attempt > after[0]) | ((c.attempt == after[0]) & (c.generation > after[1]))
    query = select(generations).where((c.job == job) & newer).order_by(c.attempt, c.generation)
    return [dict(row._mapping) for row in tx.execute(query.limit(limit))]


def list_checkpoints(tx: Tx, job: str) -> list[Row]:
    query = select(checkpoints).where(checkpoints.c.job == job).order_by(checkpoints.c.step)
    return [dict(row._mapping) for row in tx.execute(query)]


def newest_saved_step(tx: Tx, job: str) -> int:
    """0 if there is no good checkpoint yet."""
    saved = (checkpoints.c.job == job) & (checkpoints.c.state == "saved")
    return int(tx.execute(select(func.coalesce(func.max(checkpoints.c.step), 0)).where(saved)).scalar_one())


def places(tx: Tx) -> dict[str, list[str]]:
    """{job: the node of each group that is there in its current attempt, those that began first first}"""
    found: dict[str, list[tuple[int, str, str]]] = {}
    for job, group, node in tx.execute(_THERE).all():
        found.setdefault(job, []).append((len(group or ""), group or "", node))  # g2 before g10
    return {job: [node for _, _, node in sorted(groups)] for job, groups in found.items()}


def end_workers(tx: Tx, job: str, attempt: int) -> None:
    """The attempt is over, and so is whatever was still alive in it."""
    c = workers.c
    ours = (c.job == job) & (c.attempt == attempt) & c.state.not_in(["ended", "lost"])
    tx.execute(update(workers).where(ours).values(state="ended", rank=None))


def _put(tx: Tx, table: Table, key: Row, defaults: Row, values: Row) -> None:
    where = [table.c[name] == value for name, value in key.items()]
    known = {name: value for name, value in values.items() if name in table.c and name not in key}
    if known and tx.execute(update(table).where(*where).values(**known)).rowcount:
        return
    if tx.execute(select(table.c.job).where(*where)).first() is None:
        tx.execute(insert(table).values(**{**defaults, **known, **key}))

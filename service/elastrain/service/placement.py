"""The scheduler's answers, written down: jobs that start, jobs that grow, jobs that wait and why."""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.service.changes import Changes
from elastrain.service.jobs import ACTIVE, Reason, Signal, Status, advance
from elastrain.service.ray_jobs import RayNode
from elastrain.service.scheduler import Answer, Grant, Node, Wait, ask_of, plan, ray_unreachable
from elastrain.service.store import Store, Tx, attempts, feed, jobs
from elastrain.service.store.rows import JobRow


class Placement:
    def __init__(self, store: Store, driver_cpu: float, changes: Changes) -> None:
        self._store = store
        self._driver_cpu = driver_cpu
        self._changes = changes

    def place(self, nodes: Sequence[RayNode], error: str | None, now: float, admitting: bool) -> list[str]:
        """Ids of the jobs that may start now. error: why Ray cannot be reached."""
        with self._store.read() as tx:
            rows = [row for row in jobs.alive(tx) if row.status is Status.QUEUED or row.status in ACTIVE]
            leaving = {attempt.job for attempt in attempts.with_driver(tx)}
        # a preempted job whose driver is still leaving holds its workers, and waits for that
        rows = [row for row in rows if row.status in ACTIVE or row.id not in leaving]
        rows = [row for row in rows if row.status in ACTIVE or row.next_attempt_at <= now]
        answers = self._answers(rows, nodes, error)
        changed = [row for row in rows if _differs(row, answers.get(row.id), admitting)]
        if not changed:
            return []
        started = []
        with self._store.write() as tx:
            for row in changed:
                current = jobs.lock(tx, row.id)
                if (current.status, current.desired_version) == (row.status, row.desired_version):
                    _write(tx, current, answers[row.id], now)
                    if current.status is Status.QUEUED and isinstance(answers[row.id], Grant):
                        started.append(row.id)
        for row in changed:
            self._changes.tell(row.id)
        return started

    def _answers(self, rows: list[JobRow], nodes: Sequence[RayNode], error: str | None) -> dict[str, Answer]:
        if error is not None:
            return {row.id: ray_unreachable(error) for row in rows if row.status is Status.QUEUED}
        living = [Node(node.id, node.resources) for node in nodes if node.alive]
        return plan([ask_of(row) for row in rows], living, self._driver_cpu)


def _differs(row: JobRow, answer: Answer | None, admitting: bool) -> bool:
    """Whether there is something to write."""
    if answer is None:
        return False
    if isinstance(answer, Wait):
        return (row.reason, row.message, row.short_of) != (answer.reason, answer.message, answer.short_of)
    return admitting and answer.workers > row.workers_target


def _write(tx: Tx, row: JobRow, answer: Answer, now: float) -> None:
    if isinstance(answer, Wait):
        jobs.change(tx, row.id, reason=answer.reason, message=answer.message, short_of=answer.short_of)
        if row.reason != answer.reason and answer.reason is not Reason.BEHIND_OTHER_JOBS:
            data = {"reason": answer.reason.value, "short_of": answer.short_of}
            feed.add_event(tx, row.id, "job.waiting", answer.message, data, now)
        return
    if row.status is Status.QUEUED:
        if move := advance(row.status, Signal.START):
            values = {"workers_target": answer.workers, "short_of": 0}
            jobs.move(tx, row, move.status, move.reason, None, "service", now, **values)
        return
    version = row.desired_version + 1
    jobs.change(tx, row.id, workers_target=answer.workers, desired_version=version)
    data = {"from": row.workers_target, "to": answer.workers}
    feed.add_event(tx, row.id, "job.target", f"{answer.workers} workers are granted now", data, now)

"""The newest plan, as far as it must be known to all: the queue, and its number.

Whoever writes down what a plan says takes its turn first: of several service processes that planned from the
same facts one does, and the others look again. So nothing is given away twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from elastrain.service.store.engine import Tx
from elastrain.service.store.schema_queue import plans as table

_ONLY = "queue"
_VERSION = select(func.coalesce(func.max(table.c.version), 0))
_READ = select(
    table.c.version, table.c.at, table.c.queue, table.c.first_job, table.c.first, table.c.first_needs
)


class First(NamedTuple):
    """The job that the others wait behind. title, needs: for people; what another project owns they are not
    told by its title."""

    job: str
    title: str
    needs: str


@dataclass(frozen=True)
class PlanRow:
    """queue: ids of waiting jobs, first first."""

    version: int
    at: float
    queue: list[str]
    first: First | None


class NotOurTurn(RuntimeError):
    """Another process has planned meanwhile."""


def version(tx: Tx) -> int:
    return int(tx.execute(_VERSION).scalar_one())


def read(tx: Tx) -> PlanRow:
    row = tx.execute(_READ).first()
    if row is None:
        return PlanRow(0, 0.0, [], None)
    version, at, queue, job, title, needs = row
    return PlanRow(version, at, queue, First(job, title, needs) if job else None)


def take_turn(tx: Tx, seen: int, queue: list[str], first: First | None, at: float) -> None:
    """Raises NotOurTurn if the plan that was made last is no longer the one with the number `seen`."""
    job, title, needs = first or (None, None, None)
    values = {"version": seen + 1, "at": at, "queue": queue}
    values |= {"first_job": job, "first": title, "first_needs": needs}
    if seen == 0:
        try:
            tx.execute(insert(table).values(name=_ONLY, **values))
        except IntegrityError as error:
            raise NotOurTurn(str(seen)) from error
    elif tx.execute(update(table).where(table.c.version == seen).values(**values)).rowcount == 0:
        raise NotOurTurn(str(seen))

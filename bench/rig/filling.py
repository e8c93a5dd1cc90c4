"""A store that is full before the service starts: jobs as submits would have left them, many at once."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Table, insert

from elastrain.service.migrations import migrate
from elastrain.service.settings import Settings
from elastrain.service.store import Store
from elastrain.service.store.fresh import New
from elastrain.service.store.schema import events, job_labels, jobs, transitions
from elastrain.trainers.spec import parse_spec
from rig.arrivals import spec

AT_ONCE = 1000  # jobs in one transaction
Json = dict[str, Any]


def fill(settings: Settings, running: int, queued: int) -> None:
    """Those that are to run have the highest priority, and just fit."""
    migrate(settings.database_url)
    store, began = Store(settings.database_url), time.time() - running - queued
    first_ones = {"priority": 10, "workers": {**_whole()["workers"], "max": 4}}
    fill_with(store, range(running), began, **first_ones)
    fill_with(store, range(running, running + queued), began)
    store.close()


def fill_with(store: Store, numbers: range, began: float, **changes: Any) -> None:
    """Queued jobs, one a second."""
    whole = _whole()
    for first in range(0, len(numbers), AT_ONCE):
        rows: dict[Table, list[Json]] = {table: [] for table in (jobs, job_labels, transitions, events)}
        for number in numbers[first : first + AT_ONCE]:
            differs = {name: spec(number)[name] for name in ("name", "project", "priority", "labels")}
            dumped = {**whole, **differs, **changes}
            new = New.of(_id(number), dumped, "bench", [], began + number)
            rows[jobs].append(new.job)
            rows[job_labels] += [
                {"job": _id(number), "key": k, "value": v} for k, v in dumped["labels"].items()
            ]
            rows[transitions].append(new.transition)
            rows[events].append(new.event)
        with store.write() as tx:
            for table, some in rows.items():
                tx.execute(insert(table), some)


def _whole() -> Json:
    """A spec with all its fields, checked once."""
    return parse_spec(spec(1)).model_dump(mode="json")


def _id(number: int) -> str:
    return f"j-{number:010d}"

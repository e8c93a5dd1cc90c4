"""What the driver needs of Ray: to be let in, a launcher, its job shown on the dashboard. No torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import ray
from elastrain.trainers.launching.ray_launcher import RayLauncher
from elastrain.trainers.launching.ray_metrics import JobMetrics
from elastrain.trainers.launching.ray_train_page import open_page
from elastrain.trainers.launching.train_page import TrainPage
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.reporting.claim import Claim, Ticket
from elastrain.trainers.spec import JobSpec, worker_takes

if TYPE_CHECKING:
    from elastrain.trainers.coordination.attempt import Outcome


def connect() -> str:
    """Join the cluster that this process is a Ray Job of; -> this node's address, where others reach it."""
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class OnRay:
    """Of one granted attempt."""

    def __init__(self, ticket: Ticket, granted: Claim) -> None:
        self._ticket, self._granted = ticket, granted
        self._metrics: JobMetrics | None = None
        self._page: TrainPage | None = None

    def launcher(self, spec: JobSpec, said: Callable[[Json], None]) -> RayLauncher:
        """said: takes log facts, from threads of the launcher."""
        self._metrics = JobMetrics(spec, self._ticket.job)
        takes = worker_takes(spec.resources.model_dump())
        submission = self._ticket.tag.replace("/", "-")  # as the service names the Ray Job, and the tag
        self._page = open_page(spec, self._ticket.job, self._ticket.attempt, submission)
        return RayLauncher(
            self._ticket.job,
            self._ticket.attempt,
            title=spec.name,
            tag=self._ticket.tag,
            resources={name: amount for name, amount in takes.items() if amount > 0},
            labels=spec.resources.labels,
            storage_url=self._granted.storage_url,
            storage_options=self._granted.storage_options,
            said=said,
            named=self._page.take if self._page is not None else None,
        )

    def show(self, fact: Json) -> None:
        """A fact of the attempt, for Ray's dashboard."""
        if self._metrics is not None:
            self._metrics.take(fact)
        if self._page is not None:
            self._page.take(fact)

    def close(self, outcome: Outcome) -> None:
        """The dashboard is told how the attempt ended; waits for that for a moment."""
        if self._page is not None:
            self._page.close(outcome)

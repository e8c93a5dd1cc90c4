"""Ray, as one round of the reconciler sees it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from elastrain.service import ids
from elastrain.service.clock import Clock
from elastrain.service.decide import Seen
from elastrain.service.ray_jobs import ENDED, Ray, RayJob, RayNode, RayUnreachable
from elastrain.service.store import Store
from elastrain.service.store.installation import installation_id
from elastrain.service.store.rows import AttemptRow

# nodes come and go slowly, and listing them costs Ray's head more than listing jobs
NODES_EVERY_S = 5.0
# usage counts as others' once it was seen for so long
STEADY_S = 20.0


@dataclass
class Look:
    """at: just before Ray was asked. error: why it cannot be reached; then the rest says nothing."""

    at: float
    cluster: str = ""  # which Ray it is
    # (job, attempt, 0): its driver; (job, attempt, n): the nth search for what it has left
    jobs: dict[tuple[str, int, int], RayJob] = field(default_factory=dict)
    nodes: list[RayNode] = field(default_factory=list)
    steady: list[RayNode] = field(default_factory=list)  # the same, `used` being what was so for a while
    error: str | None = None
    storage_error: str | None = None  # why object storage failed in this round: it is not asked again in it

    def of(self, attempt: AttemptRow | None) -> Seen:
        """What is known of this attempt's driver; in `sweeping`, of the search for what it has left."""
        if self.error is not None:
            return Seen("unknown", self.error)
        if attempt is None:
            return Seen("absent")
        number, asked_at = 0, attempt.submitted_at
        if attempt.state == "sweeping":
            number, asked_at = attempt.sweep_no or -1, attempt.sweep_at  # or it will be asked for then
        found = self.jobs.get((attempt.job, attempt.number, number))
        if found is None:
            if (asked_at or 0.0) >= self.at:
                return Seen("unknown", "the attempt is younger than the answer")
            if attempt.cluster not in (None, self.cluster):
                return Seen("cluster_lost", f"Ray began anew, and what ran on it ({attempt.cluster}) is gone")
            return Seen("absent")
        if found.status in ENDED:
            # Ray calls a driver that was killed "succeeded" too, so its words count only where they complain.
            said = f": {found.message.strip()[-2000:]}" if found.status == "FAILED" and found.message else ""
            return Seen("ended", f"its process is gone (in Ray's list of jobs: {found.status}{said})")
        return Seen("alive")


class Looker:
    """Asks Ray. Remembers only the nodes, and for a few seconds."""

    def __init__(self, store: Store, ray: Ray, clock: Clock) -> None:
        self._store = store
        self._ray = ray
        self._clock = clock
        self._installation = ""
        self.cluster = ""
        """Which Ray answered last."""
        self._nodes: tuple[float, list[RayNode]] = (float("-inf"), [])
        self._seen: deque[tuple[float, list[RayNode]]] = deque()

    @property
    def installation(self) -> str:
        """This installation's id, part of the name of every driver of ours."""
        if not self._installation:
            with self._store.write() as tx:
                self._installation = installation_id(tx, self._clock.now())
        return self._installation

    def forget(self) -> None:
        """What was seen of the nodes is old, or the clock was set since."""
        self._nodes = (float("-inf"), [])
        self._seen.clear()

    def look(self) -> Look:
        look, installation = Look(self._clock.now()), self.installation
        try:
            look.cluster = self.cluster = self._ray.session()
            for job in self._ray.jobs():
                if (ours := ids.parse_submission(installation, job.submission_id)) is not None:
                    look.jobs[ours] = job
            if look.at - self._nodes[0] >= NODES_EVERY_S:
                self._nodes = (look.at, self._ray.nodes())
                self._seen.append(self._nodes)
            while look.at - self._seen[0][0] > STEADY_S and len(self._seen) > 1:
                self._seen.popleft()
            look.nodes = self._nodes[1]
            look.steady = [self._steady(node) for node in look.nodes]
        except RayUnreachable as error:
            look.error = str(error)
            self.forget()
        return look

    def _steady(self, node: RayNode) -> RayNode:
        """What Ray says of usage is late: what a job has just given back looks as if others used it."""
        known = [seen.used for _, nodes in self._seen for seen in nodes if seen.id == node.id]
        return replace(node, used={n: min(used.get(n, 0.0) for used in known) for n in node.used})

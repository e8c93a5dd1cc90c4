"""Who has been silent for too long. Busy is not dead. Pure."""

from __future__ import annotations

from elastrain.trainers.membership.policy import Policy
from elastrain.trainers.membership.roster import Roster, State, Worker

AWAITED = 2  # heartbeats that a member may miss while the others wait for it


def silent(roster: Roster, policy: Policy, now: float, awaited: bool) -> list[Worker]:
    """awaited: members wait for each other, so a silent one is in the way. now: machine time, s."""
    beat = policy.heartbeat_s
    quiet = [w for w in roster.workers.values() if now - w.last_beat > AWAITED * beat]
    return [
        worker
        for worker in quiet
        if (beats := _patience(worker, roster, policy, awaited)) is not None
        and now - worker.last_beat > beats * beat
    ]


def _patience(worker: Worker, roster: Roster, policy: Policy, awaited: bool) -> int | None:
    """Beats that a worker may miss; None: as many as it likes."""
    if not worker.counts:
        return None
    if roster.groups[worker.group].ended or (awaited and worker.state is State.ACTIVE):
        return AWAITED
    # an import may hold up the beats for long, and has its own limit
    return policy.silence if worker.state is not State.STARTING else None

"""What the membership machine goes by: sizes, and how patient it is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from elastrain.trainers.membership.roster import Worker


@dataclass(frozen=True)
class Policy:
    min: int
    target: int
    per_group: int = 1
    spares: int = 0  # workers that stand by, warm, beyond the target
    servers: int = 0  # beside the workers, each a group of its own: they keep the state, the workers none
    in_order: bool = True  # steps are committed one after the other; False: pushes of an asynchronous run
    heartbeat_s: float = 2.0
    silence: int = 10  # heartbeats missed until a worker is removed though nobody waits for it
    wait_s: float = 60.0  # below min for so long: checkpoint and give up the attempt
    start_timeout_s: float = 300.0
    leave_s: float = 60.0  # a worker that was let go may finish its upload
    stall_s: float = 300.0  # a member that says nothing for so long, while others wait, is stuck; at least
    stall_steps: float = 10.0  # times the slowest committed step
    link_s: float = 10.0  # everybody waits and nothing arrives: do they still reach each other?
    hang_s: float = 60.0  # they do, and it goes on for so long: they meet once more

    def suffice(self, members: Iterable[Worker], servers: int = 1) -> bool:
        """Can these train: `min` workers, and so many servers, in a job that has any?"""
        numbers = Counter(worker.server for worker in members)
        return numbers[False] >= self.min and numbers[True] >= min(servers, self.servers)

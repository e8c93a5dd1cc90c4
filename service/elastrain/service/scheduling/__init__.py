"""Who gets how many workers: pure, from what is asked, what is there and the policy. docs/scheduling.md."""

from elastrain.service.scheduling.asks import (
    Answer,
    Ask,
    Grant,
    Node,
    Policy,
    Preempt,
    Project,
    Quota,
    Stage,
    Wait,
)
from elastrain.service.scheduling.curve import Curve
from elastrain.service.scheduling.plan import Plan, plan

__all__ = [
    "Answer",
    "Ask",
    "Curve",
    "Grant",
    "Node",
    "Plan",
    "Policy",
    "Preempt",
    "Project",
    "Quota",
    "Stage",
    "Wait",
    "plan",
]

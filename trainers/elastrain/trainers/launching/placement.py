"""Which node a group goes to: a pure choice, from what nodes have and what this attempt placed on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Resources = Mapping[str, float]  # in Ray's names: CPU, GPU, memory (bytes), custom ones

EPSILON = 1e-6  # Ray counts in units of 1/10000


@dataclass(frozen=True)
class Node:
    """A living node: what it has in all, its labels, and what of it nobody uses now, if that is known."""

    id: str
    total: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    free: Resources | None = None


@dataclass(frozen=True)
class Need:
    """What a group asks of one node: `workers` times the resources, and labels that must match."""

    resources: Resources
    workers: int
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> dict[str, float]:
        return {name: amount * self.workers for name, amount in self.resources.items()}

    def __str__(self) -> str:
        wants = [f"{name} {amount:g}" for name, amount in self.total.items()]
        wants += [f"label {name}={value}" for name, value in self.labels.items()]
        return ", ".join(wants)


def choose_node(
    need: Need,
    nodes: Sequence[Node],
    placed: Iterable[tuple[str, Resources]],
    avoid: Sequence[str] = (),
) -> str | None:
    """The id of the node with the most room left that the whole group fits on; None if there is none.

    placed: (node, resources) of the attempt's groups that are there. avoid: nodes to take only if all others
    are too small, such as those where a group was lost. A node that others fill comes last: what Ray says of
    that is late, and they may be about to leave.
    """
    left = {node.id: dict(node.total) for node in nodes}
    groups = dict.fromkeys(left, 0)
    for node_id, resources in placed:
        if node_id in left:
            groups[node_id] += 1
            for name, amount in resources.items():
                left[node_id][name] = left[node_id].get(name, 0.0) - amount

    fitting = [node.id for node in nodes if could_hold(node, need) and _fits(need.total, left[node.id])]
    # spread over nodes: each is a failure domain of its own
    full = {node.id for node in nodes if node.free is not None and not _fits(need.total, node.free)}
    best = [
        (node in full, node in avoid, groups[node], -left[node].get("CPU", 0.0), node) for node in fitting
    ]
    return min(best)[-1] if best else None


def could_hold(node: Node, need: Need) -> bool:
    """Whether the group fits on the node when nothing else is there."""
    return _fits(need.total, node.total) and all(
        node.labels.get(name) == value for name, value in need.labels.items()
    )


def _fits(wanted: Resources, left: Resources) -> bool:
    return all(left.get(name, 0.0) + EPSILON >= amount for name, amount in wanted.items())

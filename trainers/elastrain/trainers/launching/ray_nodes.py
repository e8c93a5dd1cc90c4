"""What Ray knows of its nodes: which are alive, and which are going to be taken away.

Ray has no public call for draining nodes: `ray.nodes()` and the state API know ALIVE and DEAD only. Ray's own
libraries ask `ray._private.state`; so do we, here and nowhere else. Should a later Ray not have it, nodes
come down without a notice, as every node may.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from elastrain.trainers.launching.placement import Node
from elastrain.trainers.membership.messages import Notice

log = logging.getLogger(__name__)

NO_DEADLINE_S = 3600.0  # Ray waits for the node to be idle
SHORTEST_S = 1.0


def living_nodes() -> list[Node]:
    """The cluster's nodes that are alive."""
    import ray

    nodes = cast(list[dict[str, Any]], ray.nodes())  # type: ignore[no-untyped-call]
    free = _free()
    return [
        Node(node["NodeID"], node["Resources"], node.get("Labels", {}), free.get(node["NodeID"]))
        for node in nodes
        if node["Alive"]
    ]


def _free() -> Mapping[str, Mapping[str, float]]:
    """What nobody uses now, by node, as far as Ray says so."""
    try:
        from ray._private.state import available_resources_per_node

        return cast(Mapping[str, Mapping[str, float]], available_resources_per_node())  # type: ignore[no-untyped-call]
    except Exception as error:  # as with drains: not promised, and not worth a job
        log.debug("Ray does not say what is free: %s", error)
        return {}


class Drains:
    """Nodes that are being drained, as far as it was looked; each worker there gets one notice."""

    def __init__(self, ask: Callable[[], Mapping[str, float]] | None = None) -> None:
        """ask: -> the draining nodes, and for how many seconds they are still there."""
        self.nodes: frozenset[str] = frozenset()
        self._ask = ask or draining_nodes
        self._told: set[str] = set()
        self._failed = False

    def look(self, workers: Iterable[tuple[str, str]]) -> list[Notice]:
        """workers: (worker, its node). -> notices for those who had none yet."""
        try:
            deadlines = self._ask()
        except Exception as error:  # not ours, not promised, and not worth a job
            if not self._failed:
                log.warning("Ray does not say which nodes are drained: %s: %s", type(error).__name__, error)
            self._failed = True
            return []
        self._failed = False
        self.nodes = frozenset(deadlines)
        found = [(worker, node) for worker, node in workers if node in deadlines and worker not in self._told]
        self._told |= {worker for worker, _ in found}
        return [Notice(w, deadlines[n], f"Ray drains its node {n[:8]}") for w, n in found]


def draining_nodes() -> dict[str, float]:
    """Nodes that are being drained, and for how many seconds they are still there."""
    from ray._private.state import state

    deadlines = cast(Mapping[str, int], state.get_draining_nodes())
    now = time.time()  # Ray's deadline is wall-clock time, in ms; 0: none
    return {
        node: max(SHORTEST_S, at_ms / 1e3 - now) if at_ms else NO_DEADLINE_S
        for node, at_ms in deadlines.items()
    }

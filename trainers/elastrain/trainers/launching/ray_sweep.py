"""An attempt's processes ended on many nodes: a task on each, which finds them by their tag.

The driver uses it for nodes whose agent is gone. Where the driver is gone too, the service has Ray run

    python -m elastrain.trainers.launching.ray_sweep TAG

as a Ray Job of its own, and reads the receipt from the job's log: that needs nothing but Ray.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from typing import Any

from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray
from elastrain.trainers.launching import receipt_line
from elastrain.trainers.launching.ray_nodes import living_nodes
from elastrain.trainers.launching.sweep import sweep

log = logging.getLogger(__name__)

NODE_S = 20.0  # for all nodes together: a worker process of Ray's may have to be started on each

Json = dict[str, Any]


def receipt(searched: list[Json], unsearched: Iterable[str], seconds: float) -> Json:
    """What is known of an attempt's end.

    {nodes: [{node, pids: what had to be ended, left: what would not end, seconds}],
     unsearched: nodes that are alive and did not answer, seconds}
    """
    return {"nodes": searched, "unsearched": sorted(unsearched), "seconds": round(seconds, 3)}


def sweep_nodes(tag: str, nodes: Iterable[str], *, workers_only: bool) -> tuple[list[Json], list[str]]:
    """Sweep these nodes at once; -> (what each of them found, those that did not answer in time)."""
    task: Any = ray.remote(num_cpus=0, max_retries=0)(sweep)
    asked = {
        node: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            tag, workers_only=workers_only
        )
        for node in set(nodes)
    }
    searched, unsearched, deadline = list[Json](), list[str](), time.monotonic() + NODE_S
    for node, answer in asked.items():
        try:
            swept = ray.get(answer, timeout=max(0.1, deadline - time.monotonic()))
            searched.append({"node": node, **swept.to_dict()})
        except (RayError, TimeoutError) as error:
            log.warning("node %s could not be searched for processes: %s", node, error)
            unsearched.append(node)
    return searched, unsearched


def main(tag: str) -> int:
    """Sweep the whole cluster and print the receipt."""
    began = time.monotonic()
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
    here = ray.get_runtime_context().get_node_id()
    others = {node.id for node in living_nodes()} - {here}
    mine = {"node": here, **sweep(tag).to_dict()}  # without a task, which takes a second to start
    searched, unsearched = sweep_nodes(tag, others, workers_only=False)
    alive = {node.id for node in living_nodes()}
    found = receipt([mine, *searched], alive.intersection(unsearched), time.monotonic() - began)
    print(receipt_line.write(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""A Ray Job that does what a driver does for Ray's list of Train runs, and nothing else.

python train_page_driver.py SUBMISSION END        fails once there is a file END
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import ray
from elastrain.trainers.coordination.attempt import Outcome
from elastrain.trainers.launching.ray_train_page import open_page
from elastrain.trainers.spec import parse_spec

SPEC = {"name": "digits", "task": "tasks:T", "batch": {"size": 8, "microbatch": 2}, "epochs": 1}


class Holder:
    """Stands for the actor that holds a worker's resources."""

    def id(self) -> str:
        return str(ray.get_runtime_context().get_actor_id())


def main(submission: str, end: Path) -> None:
    ray.init(log_to_driver=False)
    actor = ray.remote(Holder).options(num_cpus=0).remote()
    page = open_page(parse_spec(SPEC), submission, 1, submission)
    assert page is not None
    held = {"actor": ray.get(actor.id.remote()), "address": "127.0.0.1", "resources": {"CPU": 1.0}}
    node = ray.get_runtime_context().get_node_id()
    page.take({"kind": "actor", "worker": "w1", **held})
    page.take({"kind": "worker", "id": "w1", "node": node, "pid": os.getpid(), "rank": 0, "state": "active"})
    page.take({"kind": "generation", "generation": 1, "workers": ["w1"]})
    page.take({"kind": "progress", "status": "running", "reason": None})
    while not end.exists():
        time.sleep(0.1)
    page.close(Outcome("failed", 3, "user", "ValueError: no such layer"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

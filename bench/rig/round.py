"""What a round of the reconciler costs on the store of a service that was stopped.

python -m rig.round TIMES CLUSTER       ELASTRAIN_* as the service had them; one JSON object on stdout
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable

import httpx

from elastrain.service.assembly import Service
from elastrain.service.settings import Settings


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """(seconds, seconds of this thread's processor time)"""
    began, cpu = time.perf_counter(), time.thread_time()
    act()
    return time.perf_counter() - began, time.thread_time() - cpu


def main(times: int, cluster: str) -> None:
    logging.disable(logging.WARNING)
    service = Service(Settings.from_env())
    first = timed(service.reconciler.round)
    calm = [timed(service.reconciler.round) for _ in range(times)]
    moved = []
    for _ in range(times):
        httpx.post(f"{cluster}/bench/end", json={"count": 1, "silent": True}, trust_env=False)
        moved.append(timed(service.reconciler.round))
    ms = {
        name: {
            "wall_ms": 1e3 * sorted(w for w, _ in seen)[len(seen) // 2],
            "cpu_ms": 1e3 * sorted(c for _, c in seen)[len(seen) // 2],
        }
        for name, seen in (("calm", calm), ("moved", moved))
    }
    service.close()
    print(json.dumps({**ms, "first_cpu_ms": 1e3 * first[1]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

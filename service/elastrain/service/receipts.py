"""The receipt of an attempt: where its processes were searched for, what had to be ended, what is not known.

    {proven, reason, message, nodes: [{node, pids, seconds}], unsearched: [node], seconds}

`proven`: every node that the attempt is known to have used was searched, by its agents before the driver
ended or by a sweep afterwards, and nothing is left there. Pure: what agents and sweeps say is checked here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

Json = dict[str, Any]
CLUSTER_LOST = "cluster_lost"


def read(said: object) -> Json | None:
    """What a driver or a sweep says, {nodes: [{node, pids, left, seconds}], unsearched, seconds}; None if it
    is anything else."""
    try:
        assert isinstance(said, Mapping)
        nodes = [
            {
                "node": str(item["node"]),
                "pids": [int(pid) for pid in item["pids"]],
                "left": [int(pid) for pid in item["left"]],
                "seconds": round(float(item["seconds"]), 3),
            }
            for item in said["nodes"]
        ]
        unsearched = [str(node) for node in said["unsearched"]]
        return {"nodes": nodes, "unsearched": unsearched, "seconds": round(float(said["seconds"]), 3)}
    except (AssertionError, LookupError, TypeError, ValueError):
        return None


def open_points(found: Json) -> str:
    """What is not done yet, for people; empty if nothing is."""
    points = [f"node {short(node)} did not answer" for node in found["unsearched"]]
    for item in found["nodes"]:
        if item["left"]:
            pids = ", ".join(map(str, item["left"]))
            points.append(f"on node {short(item['node'])} the system does not let go of process {pids}")
    return "; ".join(points)


def searched(found: Json, used: Collection[str]) -> Json:
    """The receipt of a search without open points. used: nodes on which the attempt is known to have run."""
    nodes: dict[str, Json] = {}
    for item in found["nodes"]:  # a node can have had two agents, one after the other
        merged = nodes.setdefault(item["node"], {"node": item["node"], "pids": [], "seconds": 0.0})
        merged["pids"] = [*merged["pids"], *item["pids"]]
        merged["seconds"] = round(merged["seconds"] + item["seconds"], 3)
    missing = sorted(set(used) - set(nodes))
    pids = sum(len(item["pids"]) for item in nodes.values())
    ended = f"{_count(pids, 'process', 'es')} left behind and ended" if pids else "nothing was left behind"
    message = f"{_count(len(nodes), 'node')} searched, {ended}"
    if missing:
        names = ", ".join(short(node) for node in missing)
        message += f"; not searched, since gone from the cluster: {names}"
    return _receipt(not missing, None, message, list(nodes.values()), missing, found["seconds"])


def nothing_started() -> Json:
    return _receipt(True, None, "the driver had not been let in, and had started nothing", [], [], 0.0)


def cluster_lost(why: str, used: Collection[str]) -> Json:
    """Nothing can be searched any more. why: a sentence."""
    return _receipt(False, CLUSTER_LOST, why, [], sorted(used), 0.0)


def given_up(found: Json | None, why: str, used: Collection[str]) -> Json:
    """The search did not come to an end, and nobody waits for it."""
    nodes = [{k: v for k, v in item.items() if k != "left"} for item in (found or {"nodes": []})["nodes"]]
    missing = sorted(set(used) - {item["node"] for item in nodes})
    return _receipt(False, None, why, nodes, missing, (found or {"seconds": 0.0})["seconds"])


def sentence(attempt: int, receipt: Json) -> str:
    """For the event."""
    known = "Every process of" if receipt["proven"] else "It is not proven that every process of"
    return f"{known} attempt {attempt} is gone: {receipt['message']} ({receipt['seconds']:g} s)"


def short(node: str) -> str:
    """Ray's ids of nodes have 56 digits; its own pages show as many."""
    return node[:8]


def _receipt(
    proven: bool, reason: str | None, message: str, nodes: list[Json], unsearched: list[str], seconds: float
) -> Json:
    return {
        "proven": proven,
        "reason": reason,
        "message": message,
        "nodes": nodes,
        "unsearched": unsearched,
        "seconds": seconds,
    }


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"

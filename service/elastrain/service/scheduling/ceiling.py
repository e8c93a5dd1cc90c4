"""What Ray's autoscaler could still add: shapes of nodes, and how many of each there may be at most."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastrain.service.scheduling.asks import Node, Resources
from elastrain.service.scheduling.usage import EPSILON

EXAMPLE = '[{"resources": {"CPU": 8, "GPU": 1}, "max": 4}]'
MOST = 10_000


@dataclass(frozen=True)
class Shape:
    """Nodes of a kind: what each has, and how many there may be, with those that are there."""

    resources: Resources
    max: int

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Shape:
        return cls({str(name): float(amount) for name, amount in item["resources"].items()}, int(item["max"]))

    def view(self) -> dict[str, Any]:
        return {"resources": dict(self.resources), "max": self.max}


def parse_ceiling(text: str) -> tuple[Shape, ...]:
    """The value of CAPACITY_MAX. Raises ValueError saying what is wrong with it."""
    try:
        items = json.loads(text)
    except ValueError:
        raise ValueError(f"is not JSON; give node shapes, for example {EXAMPLE}") from None
    if not isinstance(items, list) or not all(_sound(item) for item in items):
        raise ValueError(
            f"is not a list of node shapes; each has resources, numbers above 0 by Ray's names, and max, a "
            f"whole number up to {MOST}; for example {EXAMPLE}"
        )
    return tuple(Shape.of(item) for item in items)


def addable(ceiling: Sequence[Shape], nodes: Sequence[Node]) -> list[Node]:
    """Nodes that could still come. A node counts for the first shape that it matches in all that is named."""
    left = [shape.max for shape in ceiling]
    for node in nodes:
        for index, shape in enumerate(ceiling):
            if left[index] > 0 and _is(node, shape):
                left[index] -= 1
                break
    return [
        Node(f"new-{index}-{number}", shape.resources, new=True)
        for index, shape in enumerate(ceiling)
        for number in range(left[index])
    ]


def _is(node: Node, shape: Shape) -> bool:
    named = shape.resources.items()
    same = all(abs(node.resources.get(name, 0.0) - amount) < EPSILON for name, amount in named)
    return same and ("GPU" in shape.resources or node.resources.get("GPU", 0.0) == 0)


def _sound(item: Any) -> bool:
    if not isinstance(item, dict) or set(item) != {"resources", "max"}:
        return False
    most, resources = item["max"], item["resources"]
    return (
        type(most) is int
        and 0 <= most <= MOST
        and isinstance(resources, dict)
        and all(type(a) in (int, float) and math.isfinite(a) and a > 0 for a in resources.values())
        and bool(resources)
    )

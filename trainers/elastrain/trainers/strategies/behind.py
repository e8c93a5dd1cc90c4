"""How far behind the pushes of an asynchronous run are, as people see it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.trainers.membership.messages import Json


@dataclass
class Behind:
    """Over the steps that one attempt has accepted."""

    steps: int = 0
    total: int = 0
    most: int = 0

    def observe(self, record: Json) -> dict[str, float]:
        """Metrics of a step: its staleness, and mean and maximum so far; none of a synchronous one."""
        if "staleness" not in record:
            return {}
        staleness = int(record["staleness"])
        self.steps, self.total = self.steps + 1, self.total + staleness
        self.most = max(self.most, staleness)
        return {
            "staleness": float(staleness),
            "staleness_mean": round(self.total / self.steps, 4),
            "staleness_max": float(self.most),
        }

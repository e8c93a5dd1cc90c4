"""How long ended jobs are kept, and that it is said before one goes, with what goes along. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastrain.service.clock import rfc3339
from elastrain.service.jobs import ENDED
from elastrain.service.store.leftovers import Holding
from elastrain.service.store.rows import JobRow

DAY_S = 86_400.0
# so long before a job is removed it says so; or half the time that it is kept, if that is less
NOTICE_S = 3 * DAY_S
# the largest that are named in one line
NAMED = 5


@dataclass(frozen=True)
class Retention:
    """keep_s: how long after its end a job is removed; 0 keeps all for ever."""

    keep_s: float

    @property
    def notice_s(self) -> float:
        return min(NOTICE_S, self.keep_s / 2)

    def goes_at(self, row: JobRow) -> float | None:
        """When it is removed, if nobody pins it; None: never."""
        if not self.keep_s or row.pinned or row.status not in ENDED or row.finished_at is None:
            return None
        return row.finished_at + self.keep_s

    def soon(self, row: JobRow, now: float) -> bool:
        at = self.goes_at(row)
        return at is not None and now >= at - self.notice_s

    def warning(self, row: JobRow, holds: Holding) -> str:
        """For the job's own `warnings`."""
        at = rfc3339(self.goes_at(row))
        return (
            f"It is removed on {at}, as it ended {self.keep_s / DAY_S:g} days before, and with it "
            f"{_checkpoints(holds)}. `elastrain pin {row.id}` keeps it"
        )

    def notice(self, going: Sequence[Holding]) -> str:
        """For the log of the service; `going` is not empty."""
        largest = sorted(going, key=lambda holds: (-holds.bytes, holds.job))
        named = ", ".join(f"{holds.job} ({holds.name}, {size(holds.bytes)})" for holds in largest[:NAMED])
        whole = Holding("", "", sum(h.checkpoints for h in going), sum(h.bytes for h in going))
        return (
            f"{len(going)} ended jobs are removed within {self.notice_s / DAY_S:g} days, with "
            f"{_checkpoints(whole)}; the largest: {named}. Jobs that are pinned stay"
        )


def _checkpoints(holds: Holding) -> str:
    if not holds.checkpoints:
        return "no checkpoint"
    return f"{holds.checkpoints} checkpoint{'s' if holds.checkpoints > 1 else ''} of {size(holds.bytes)}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"

"""What the survivors of a generation hold, and where the next one goes on: two pure functions of reports.

Invariant they rest on: a commit record exists only if every member held its reduced chunks in memory, so
members are never more than one step apart, and one survivor of each chunk can carry the record out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elastrain.trainers.messages import Json, Open, Report

Stored = tuple[int, Json] | None  # (step, the record that led to it)


def covered(reports: Iterable[Report], blocks: int, step: int, record: Stored) -> bool:
    """Is the state of every block held by somebody, at `step` or one behind with the record at hand?

    step: accepted steps. If not, nothing in memory can continue the job: restore.
    """
    held: set[int] = set()
    for report in reports:
        behind = report.step < step
        if report.cursor is None or report.step < step - 1 or (behind and not _leads_to(record, step)):
            continue
        for start, stop in report.held:
            held.update(range(start, stop))
    return blocks > 0 and len(held) == blocks


def resume_point(reports: Mapping[str, Report], step: int, record: Stored) -> Open:
    """An opening at the newest step that is proven, by a report or by the stored record. Its generation and
    members are for the caller to fill in. Reports must cover every block."""
    useful = {w: r for w, r in reports.items() if r.cursor is not None and r.step >= step - 1}
    to = max(step, *(r.step for r in useful.values()))
    newest = [r for r in useful.values() if r.step == to]
    behind = [r for r in useful.values() if r.step == to - 1]
    return Open(
        generation=0,
        members=(),
        step=to,
        cursor=(newest or behind)[0].cursor,
        record=record[1] if record is not None and behind and _leads_to(record, to) else None,
        held={w: r.held for w, r in useful.items()},
        whole=tuple(w for w, r in useful.items() if r.whole and r.step == to),
        done={w: r.done if r.step == to else () for w, r in useful.items()},
    )


def _leads_to(record: Stored, step: int) -> bool:
    return record is not None and record[0] == step

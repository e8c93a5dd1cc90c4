"""What the survivors of a generation hold, and where the next one goes on: pure functions of their reports.

Invariant they rest on: a commit record exists only if every member held its reduced chunks in memory, so
members are never more than one step apart, and one survivor of each chunk can carry the record out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from elastrain.trainers.membership.messages import Json, Open, Report

Stored = tuple[int, Json] | None  # (step, the record that led to it)


def useful(report: Report, step: int, record: Stored) -> bool:
    """Can what was reported go on at `step`: is it there, or one behind with the record at hand?"""
    if report.cursor is None:
        return False
    return report.step == step or (report.step == step - 1 and record is not None and record[0] == step)


def holders(reports: Iterable[Report], step: int, record: Stored) -> Counter[int]:
    """How many hold the state of each block, at `step` or able to get there. Blocks without are left out.

    step: accepted steps.
    """
    found: Counter[int] = Counter()
    for report in reports:
        if useful(report, step, record):
            found.update({block for start, stop in report.held for block in range(start, stop)})
    return found


def resume_point(reports: Mapping[str, Report], step: int, record: Stored) -> Open:
    """An opening at `step`. Its generation and members are for the caller to fill in.

    The reports must cover every block, and prove no step after `step`.
    """
    good = {w: r for w, r in reports.items() if useful(r, step, record)}
    newest = {w: r for w, r in good.items() if r.step == step}
    layouts = Counter(r.layout for r in good.values() if r.layout)
    layout = max(layouts, key=lambda g: (layouts[g], g), default=0)  # the one that says the most
    behind = [r for r in good.values() if r.step < step]
    return Open(
        generation=0,
        members=(),
        step=step,
        cursor=[*newest.values(), *behind][0].cursor,
        record=record[1] if record is not None and behind else None,
        held={w: r.held for w, r in good.items()},
        same=(layout, tuple(w for w, r in good.items() if r.layout == layout > 0)),
        whole=tuple(w for w, r in newest.items() if r.whole),
        done={w: r.done for w, r in newest.items()},
    )

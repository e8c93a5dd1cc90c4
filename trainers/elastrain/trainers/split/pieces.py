"""Arithmetic of a pipeline: into how many pieces a microbatch is cut, and where a model. Pure, no torch."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 4  # pieces of a microbatch, for each stage: then little time is lost (Huang et al., GPipe, 2019, 2.3)


def pieces_of(samples: int, stages: int, least: int = 1) -> int:
    """Into how many equal pieces a microbatch is cut, on which the stages work one behind the other. least:
    samples of a piece, if there are more than one."""
    most = min(samples // least, MOST * stages)
    return max(n for n in range(1, max(most, 1) + 1) if samples % n == 0)


def cut(sizes: Sequence[int], count: int) -> list[slice]:
    """Parts with so many elements in `count` runs, none of them empty, whose sizes are as equal as can be: of
    the least sum of squares. What has no elements goes with what comes before it."""
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    parts = len(sizes)
    # of the first `end` parts in so many runs: (sum of squares, where the last run begins)
    best = [{0: (0, 0)}]
    for run in range(1, count + 1):
        before = best[-1]
        best.append(
            {
                end: min(
                    (
                        (before[first][0] + (sums[end] - sums[first]) ** 2, first)
                        for first in range(run - 1, end)
                        if first in before
                    ),
                    key=lambda found: (found[0], -found[1]),
                )
                for end in range(run, parts + 1)
            }
        )
    runs: list[slice] = []
    end = parts
    for run in range(count, 0, -1):
        first = best[run][end][1]
        runs.append(slice(first, end))
        end = first
    return runs[::-1]

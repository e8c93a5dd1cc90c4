"""Curves in text: a sparkline for one line, a chart for a screen. Pure: numbers in, text out."""

import itertools
import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


def finite(values: Sequence[object]) -> list[float]:
    """The numbers among `values`: NaN and infinity come as text and are left out."""
    return [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]


def thin(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means over equal stretches."""
    if len(values) <= width:
        return list(values)
    edges = [round(place * len(values) / width) for place in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def levels(values: Sequence[float], top: int) -> list[int]:
    """Each value's height among 0..top, the lowest at 0 and the highest at top."""
    low, high = min(values), max(values)
    return [round((value - low) / (high - low) * top) if high > low else 0 for value in values]


def sparkline(values: Sequence[object], width: int = 40) -> str:
    """One line of bars, oldest on the left."""
    numbers = thin(finite(values), width)
    return "".join(BARS[level] for level in levels(numbers, len(BARS) - 1)) if numbers else ""


def chart(title: str, points: Sequence[tuple[int, object]], width: int = 70, height: int = 10) -> list[str]:
    """Lines of a bar chart of (step, value), with the range of both."""
    known = [(step, float(v)) for step, v in points if isinstance(v, int | float) and math.isfinite(v)]
    if not known:
        return [f"{title}: no finite values"]
    numbers = thin([value for _, value in known], width)
    heights = levels(numbers, height * len(BARS) - 1)
    rows = [_row(heights, floor * len(BARS)) for floor in reversed(range(height))]
    labels = [f"{max(numbers):.4g}", *[""] * (height - 2), f"{min(numbers):.4g}"]
    margin = max(len(label) for label in labels)
    body = [f"{label:>{margin}} ┤{row}".rstrip() for label, row in zip(labels, rows, strict=True)]
    foot = f"{'':>{margin}} └ step {known[0][0]} to {known[-1][0]}"
    return [title, *body, foot]


def _row(heights: Sequence[int], floor: int) -> str:
    """The part of each bar between `floor` and one character above it."""
    full = len(BARS)
    return "".join(BARS[min(h - floor, full - 1)] if h >= floor else " " for h in heights)

"""What a script of the bench leaves: a table, a plot, and one JSON object on its last line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.analysis import Target, falls_short

Cell = str | float | int | None


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns as wide as they need to be; the first to the left, the others to the right."""
    cells = [list(heads), *([_text(cell) for cell in row] for row in rows)]
    first, *others = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = [
        "  ".join([row[0].ljust(first), *(c.rjust(w) for c, w in zip(row[1:], others, strict=True))])
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in (first, *others)), *lines[1:]])


def markdown(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """The same for a document."""
    lines = [list(heads), ["---"] * len(heads), *([_text(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def bars(path: Path, title: str, unit: str, values: Mapping[str, float | None], *, log: bool = False) -> None:
    """One horizontal bar per system, with its figure."""
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return
    plot = _pyplot()
    figure, axes = plot.subplots(figsize=(8, 1.2 + 0.45 * len(known)), layout="constrained")
    names = list(known)[::-1]
    colours = ["#c65d21" if name.startswith("elastrain") else "#7a8794" for name in names]
    drawn = axes.barh(names, [known[name] for name in names], color=colours)
    axes.bar_label(drawn, fmt=lambda value: f"{value:.3g}", padding=3)
    axes.set_title(title, loc="left")
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    if log:
        axes.set_xscale("log")
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def curves(path: Path, title: str, x: str, y: str, lines: Mapping[str, Mapping[float, float | None]]) -> None:
    """One line per name, on two logarithmic axes: what grows with its cause rises by 45 degrees."""
    plot = _pyplot()
    figure, axes = plot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, points in lines.items():
        known = {at: value for at, value in points.items() if value is not None}
        axes.plot(list(known), list(known.values()), marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
    axes.set_title(title, loc="left")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(f"plot: {path}")


def finish(figures: Mapping[str, Any], targets: Sequence[Target], remarks: Sequence[str] = ()) -> int:
    """The last line. Returns the exit code: 0 if every target is met by calm measurements."""
    short = [*falls_short(targets), *remarks]
    print(json.dumps({**rounded(figures), "falls_short": short}))
    return 1 if short else 0


def rounded(value: Any) -> Any:
    """The same figures with four digits, for people."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return value

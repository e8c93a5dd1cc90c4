"""Answers on the terminal: a table for people, JSON and YAML for programs, ids for shells."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from elastrain.client.errors import FixRequest


class Format(StrEnum):
    table = "table"
    json = "json"
    yaml = "yaml"
    id = "id"


Output = Annotated[Format, typer.Option("-o", "--output", help="How to print the answer.")]
Item = Mapping[str, Any]
Column = tuple[str, Callable[[Item], Any]]

COLOURS = {
    "succeeded": "green",
    "active": "green",
    "saved": "green",
    "running": "cyan",
    "failed": "red",
    "lost": "red",
    "bad": "red",
    "cancelled": "yellow",
    "cancelling": "yellow",
}


def say(text: str) -> None:
    """A remark for people: on stderr, so that stdout holds answers only."""
    print(text, file=sys.stderr, flush=True)


def show(answer: Any, form: Format, human: Callable[[], None]) -> None:
    """Prints `answer` for programs, or calls `human`."""
    if form is Format.json:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    elif form is Format.yaml:
        print(yaml.safe_dump(answer, sort_keys=False, allow_unicode=True), end="")
    elif form is Format.id:
        for item in answer if isinstance(answer, list) else [answer]:
            found = [item[name] for name in ("id", "step", "generation") if name in item]
            if not found:
                raise FixRequest("This answer has no id: use -o json, yaml or table.")
            print(found[0])
    else:
        human()


def show_items(items: Sequence[Item], form: Format, columns: Sequence[Column], empty: str) -> None:
    """Prints a list; `empty` is what a person reads if there is nothing in it."""
    show(list(items), form, lambda: print_table(items, columns) if items else say(empty))


def print_table(items: Iterable[Item], columns: Sequence[Column]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, _ in columns:
        table.add_column(name.upper(), overflow="fold")
    for item in items:
        table.add_row(*(cell(value(item)) for _, value in columns))
    put(table)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Name and value, one pair a line; those without a value are left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        if value not in (None, "", [], {}):
            table.add_row(name, cell(value))
    put(table)


def console() -> Console:
    """Standard output; what is not a terminal gets lines as long as they are. User text is never markup."""
    width = None if sys.stdout.isatty() else 10_000
    return Console(width=width, markup=False, highlight=False, emoji=False)


def put(table: Table) -> None:
    """Prints a table, without the spaces that would fill up its lines."""
    screen = console()
    with screen.capture() as captured:
        screen.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def cell(value: Any) -> Text:
    text = "-" if value is None else str(value)
    return Text(text, style=COLOURS.get(text, ""))


def field(name: str) -> Column:
    """A column that shows an item's field of that name."""
    return name, lambda item: item.get(name)


def figure(value: Any) -> str:
    """A number in as few characters as tell it; what is not one stays as it is."""
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def span(seconds: Any) -> str:
    """A duration such as 3m12s."""
    if not isinstance(seconds, int | float):
        return "-"
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def size(count: Any) -> str:
    """Bytes as KiB, MiB, GiB."""
    if not isinstance(count, int | float):
        return "-"
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"

"""Commands on the whole: cluster, queue, version."""

from collections.abc import Mapping
from importlib.metadata import version as installed
from typing import Any

from elastrain.api.cli.output import (
    Column,
    Format,
    Item,
    Output,
    field,
    figure,
    print_table,
    say,
    show,
    show_items,
)
from elastrain.client import Client
from elastrain.client.errors import ElastrainError


def cluster(output: Output = Format.table) -> None:
    """Show the nodes, what they have and what is in use."""
    found = Client().cluster()
    show(found, output, lambda: print_cluster(found))


def print_cluster(found: Item) -> None:
    if not found.get("reachable", True):
        say(f"Ray cannot be reached: {found.get('detail')}")
    columns: list[Column] = [
        ("node", lambda node: str(node["id"])[:12]),
        ("alive", lambda node: "yes" if node["alive"] else "no"),
        ("in use", lambda node: shares(node["used"], node["resources"])),
    ]
    print_table(found["nodes"], columns)


def shares(used: Mapping[str, Any], total: Mapping[str, Any]) -> str:
    """Such as `CPU 1/2`, for countable resources."""
    named = {
        name: amount for name, amount in total.items() if ":" not in name and "memory" not in name.lower()
    }
    return ", ".join(f"{name} {figure(used.get(name, 0))}/{figure(amount)}" for name, amount in named.items())


def queue(output: Output = Format.table) -> None:
    """Show the jobs that wait, and what for."""
    columns: list[Column] = [field(name) for name in ("position", "id", "name", "priority", "blocked_by")]
    columns.append(("short of", short_of))
    show_items(Client().queue(), output, columns, "No job waits.")


def short_of(waiting: Item) -> str | None:
    """Such as `2 workers`."""
    missing = waiting.get("short_of") or {}
    return ", ".join(f"{figure(amount)} {name}" for name, amount in missing.items()) or None


def version(output: Output = Format.table) -> None:
    """Show the versions of this command and of the server."""
    answer: dict[str, Any] = {"client": installed("elastrain")}
    try:
        answer.update(Client().version())
    except ElastrainError as error:
        answer.update(server=None)
        say(f"The server's version is not known: {error.detail}")
    show(
        answer, output, lambda: print("\n".join(f"{name} {value}" for name, value in answer.items() if value))
    )


COMMANDS = (cluster, queue, version)

"""Commands on projects: project (list, create, set) and usage."""

from typing import Annotated, Any

import typer

from elastrain.api.cli.failures import guarded
from elastrain.api.cli.output import Column, Format, Item, Output, field, figure, show, show_items
from elastrain.client import Client
from elastrain.client.errors import FixRequest

Name = Annotated[str, typer.Argument(metavar="NAME", help="The project's name.")]
Workers = Annotated[
    str | None, typer.Option(metavar="N", help="The most workers that its jobs may hold; none: no limit.")
]
Gpus = Annotated[
    str | None, typer.Option(metavar="N", help="The most GPUs that its jobs may hold; none: no limit.")
]
Weight = Annotated[float | None, typer.Option(help="Its part where projects compete; 1 if not given.")]


def listed(output: Output = Format.table) -> None:
    """List the projects with their quotas."""
    columns: list[Column] = [
        field("name"),
        ("workers", lambda item: limit(item["quota"]["workers"])),
        ("gpus", lambda item: limit(item["quota"]["gpus"])),
        ("weight", lambda item: figure(item["weight"])),
    ]
    show_items(_named(Client().projects(), "name"), output, columns, "No projects.")


def create(
    name: Name,
    workers: Workers = None,
    gpus: Gpus = None,
    weight: Weight = None,
    output: Output = Format.table,
) -> None:
    """Make a project."""
    made = Client().create_project(name, **body(workers, gpus, weight))
    show(made, output, lambda: print(f"Project {name} is there: {described(made)}."))


def change(
    name: Name,
    workers: Workers = None,
    gpus: Gpus = None,
    weight: Weight = None,
    output: Output = Format.table,
) -> None:
    """Change a project's quota or weight."""
    changes = body(workers, gpus, weight)
    if not changes:
        raise FixRequest("Nothing to change: give --workers, --gpus or --weight.")
    made = Client().change_project(name, **changes)
    show(made, output, lambda: print(f"Project {name} has {described(made)} from now on."))


def usage(output: Output = Format.table) -> None:
    """Show what each project uses now, beside its quota."""
    columns: list[Column] = [
        field("project"),
        ("running", lambda item: item["running"]["jobs"]),
        ("workers", lambda item: of(item["running"]["workers"], item["quota"]["workers"])),
        ("gpus", lambda item: of(item["running"]["gpus"], item["quota"]["gpus"])),
        ("cpus", lambda item: figure(item["running"]["cpus"])),
        ("share", lambda item: f"{item['share']:.0%}"),
        ("waiting", lambda item: item["waiting"]["jobs"]),
        ("need", lambda item: item["waiting"]["workers"]),
    ]
    show_items(_named(Client().usage(), "project"), output, columns, "Nothing is used.")


def body(workers: str | None, gpus: str | None, weight: float | None) -> dict[str, Any]:
    """As the API wants it; what was not given is left out."""
    given = {"workers": workers, "gpus": gpus}
    quota = {name: number(name, text) for name, text in given.items() if text is not None}
    return {**({"quota": quota} if quota else {}), **({"weight": weight} if weight is not None else {})}


def number(name: str, text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not text.isdecimal():
        raise FixRequest(f"--{name} {text!r} is not a number of at least 0: give one, or none for no limit.")
    return int(text)


def limit(value: int | None) -> str:
    return "no limit" if value is None else str(value)


def of(used: float, quota: int | None) -> str:
    """Such as `3/8`."""
    return figure(used) if quota is None else f"{figure(used)}/{quota}"


def described(project: Item) -> str:
    quota = project["quota"]
    return ", ".join(
        [
            *(f"{name} {limit(quota[name])}" for name in ("workers", "gpus")),
            f"weight {figure(project['weight'])}",
        ]
    )


def _named(items: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """For -o id: what identifies an item."""
    return [{"id": item[name], **item} for item in items]


app = typer.Typer(name="project", help="Projects, their quotas and weights.", no_args_is_help=True)
app.command("ls")(guarded(listed))
app.command("create")(guarded(create))
app.command("set")(guarded(change))

COMMANDS = (usage,)

"""Commands on checkpoints: list them, fetch one."""

from pathlib import Path
from typing import Annotated

import typer

from elastrain.api.cli.output import Column, Format, Output, field, figure, show, show_items, size
from elastrain.client import Client

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, shortened while unique.")]


def checkpoints(job_id: JobId, output: Output = Format.table) -> None:
    """List a job's checkpoints."""
    client = Client()
    items = client.http.json("GET", f"{client.job(job_id).path}/checkpoints")["items"]
    columns: list[Column] = [
        field("step"),
        field("state"),
        ("epoch", lambda item: figure(item["epoch"])),
        ("size", lambda item: size(item["bytes"])),
        ("params digest", lambda item: (item["params_digest"] or "-")[:16]),
        ("created", lambda item: item["created_at"]),
    ]
    show_items(items, output, columns, "No checkpoints yet.")


def download(
    job_id: JobId,
    step: Annotated[int | None, typer.Option(help="Of this step, not the newest.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = Path(),
    output: Output = Format.table,
) -> None:
    """Fetch a checkpoint's files, checked against their sha256. model.safetensors is the model."""
    checkpoint = Client().job(job_id).checkpoint(step)
    paths = checkpoint.download(out)
    answer = {"step": checkpoint.step, "files": [str(path) for path in paths]}
    show(
        answer, output, lambda: print("\n".join([f"Checkpoint of step {checkpoint.step}:", *map(str, paths)]))
    )


COMMANDS = (checkpoints, download)

"""Requests to a job: pause, resume, cancel, retry, clone, checkpoint, pin, delete."""

from typing import Annotated

import typer

from elastrain.api.cli.jobs import JobId
from elastrain.api.cli.output import Format, Output, field, say, show, show_items
from elastrain.client import Client, Job
from elastrain.client.errors import FixRequest
from elastrain.client.spec_file import override, sendable


def pause(job_id: JobId, output: Output = Format.table) -> None:
    """Save a job and give back everything that it holds, until it is resumed."""
    _tell(Client().job(job_id).pause(), output)


def resume(job_id: JobId, output: Output = Format.table) -> None:
    """Put a paused job back into the queue; it goes on from its checkpoint."""
    _tell(Client().job(job_id).resume(), output)


def retry(job_id: JobId, output: Output = Format.table) -> None:
    """Try a failed or cancelled job again, from its newest good checkpoint."""
    _tell(Client().job(job_id).retry(), output)


def cancel(
    job_id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The job's id, shortened while unique.")
    ] = None,
    status: Annotated[str | None, typer.Option(help="All with this status (or several, by comma).")] = None,
    project: Annotated[str | None, typer.Option(help="All of this project that live.")] = None,
    label: Annotated[str | None, typer.Option(metavar="K:V", help="All with this label that live.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list those it would be.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="For admins: without the proof, if its cluster is lost.")
    ] = False,
    output: Output = Format.table,
) -> None:
    """End a job, or all that a filter finds. It is `cancelled` once all its processes are gone."""
    if job_id is not None:
        if status or project or label or dry_run:
            raise FixRequest("Give either an ID or a filter.")
        _tell(Client().job(job_id).cancel(force), output)
        return
    if force:
        raise FixRequest("--force takes an ID: it is for one job whose cluster is lost.")
    items = Client().cancel(status=status, project=project, label=label, dry_run=dry_run)
    columns = [field("id"), field("name"), field("status"), ("detail", lambda item: item["detail"] or "")]
    show_items(items, output, columns, "No job fits.")
    if dry_run and items and output is Format.table:
        say(f"{len(items)} would be cancelled; nothing was done.")


def clone(
    job_id: JobId,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Changes a field of the spec.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Submit a new job, from scratch, with the spec of one that there is."""
    overrides = override({}, settings or ())
    sendable(overrides)
    made = Client().job(job_id).clone(overrides)
    show(made.data, output, lambda: print(f"Job {made.id} submitted. Watch it: elastrain follow {made.id}"))


def checkpoint(
    job_id: JobId,
    wait: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Wait until it is saved, for S seconds at most.")
    ] = None,
    output: Output = Format.table,
) -> None:
    """Have a job save a checkpoint now."""
    job = Client().job(job_id).checkpoint_now(wait)
    requests = job.data["checkpoint_requests"]
    said = "is saved" if requests["done"] == requests["asked"] else "is under way"
    show(job.data, output, lambda: print(f"Request {requests['asked']} of job {job.id} {said}."))


def pin(
    job_id: JobId,
    off: Annotated[bool, typer.Option("--off", help="No longer.")] = False,
    output: Output = Format.table,
) -> None:
    """Keep a job, however long ago it ended."""
    job = Client().job(job_id).pin(not off)
    show(job.data, output, lambda: print(f"Job {job.id} is {'not ' if off else ''}pinned."))


def delete(job_id: JobId, output: Output = Format.table) -> None:
    """Remove an ended job with everything that it left, checkpoints included."""
    job = Client().job(job_id)
    job.delete()
    show(job.data, output, lambda: print(f"Job {job.id} is deleted."))


def _tell(job: Job, output: Format) -> None:
    show(job.data, output, lambda: print(f"Job {job.id} is {job.status}."))


COMMANDS = (pause, resume, cancel, retry, clone, checkpoint, pin, delete)

"""Commands on jobs: submit, ls, get, scale, wait."""

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from elastrain.api.cli.cluster import short_of
from elastrain.api.cli.output import (
    Format,
    Item,
    Output,
    field,
    figure,
    print_fields,
    say,
    show,
    show_items,
    span,
)
from elastrain.api.cli.traces import failure_lines
from elastrain.api.cli.watch import watch
from elastrain.client import Client
from elastrain.client.errors import FixRequest, JobFailed

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, shortened while unique.")]


def submit(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The job spec, YAML or JSON.")],
    working_dir: Annotated[Path | None, typer.Option(help="Folder with your code, uploaded once.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Changes a field of the spec.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay and show its progress.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check it and say what it would get.")
    ] = False,
    output: Output = Format.table,
) -> int:
    """Submit a job."""
    client = Client(warn=lambda text: say(f"Warning: {text}"))
    if dry_run:
        plan = client.dry_run(file, working_dir, settings or ())
        show(plan, output, lambda: print_plan(plan))
        return 0
    job = client.submit(file, working_dir, settings or ())
    for warning in job.data.get("warnings") or []:
        say(f"Warning: {warning}")
    if follow:
        say(f"Job {job.id} submitted.")
        return watch(job, output)
    show(job.data, output, lambda: print(f"Job {job.id} submitted. Watch it: elastrain follow {job.id}"))
    return 0


def print_plan(plan: Item) -> None:
    if plan["schedulable"]:
        print(f"It would start now with {plan['would_get']} workers.")
    else:
        print(f"It would wait: {plan['blocked_by']}.")
    for warning in plan["warnings"]:
        print(f"Warning: {warning}")


def ls(
    status: Annotated[str | None, typer.Option(help="Only these, comma-separated.")] = None,
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
    label: Annotated[str | None, typer.Option(metavar="K:V", help="Only those with this label.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    output: Output = Format.table,
) -> None:
    """List jobs, newest first."""
    jobs = Client().jobs(status=status, project=project, label=label, limit=limit)
    columns = [
        field("id"),
        field("name"),
        field("status"),
        ("reason", lambda job: job["reason"] or ""),
        ("step", steps),
        ("workers", lambda job: f"{job['workers']['active']}/{job['workers']['max']}"),
        ("loss", lambda job: figure((job["metrics"].get("latest") or {}).get("loss"))),
        ("age", lambda job: span(age_s(job["created_at"]))),
    ]
    show_items([job.data for job in jobs], output, columns, "No jobs. Submit one: elastrain submit FILE")


def get(
    job_id: JobId,
    trace: Annotated[bool, typer.Option("--trace", help="The whole trace of a failed job.")] = False,
    output: Output = Format.table,
) -> None:
    """Show one job."""
    job = Client().job(job_id).data
    show(job, output, lambda: print_job(job, trace))


def print_job(job: Item, trace: bool) -> None:
    workers, progress, counters = job["workers"], job["progress"], job["counters"]
    queue = job["queue"] or {}
    latest = job["metrics"].get("latest") or {}
    fields: list[tuple[str, Any]] = [
        ("id", job["id"]),
        ("name", job["name"]),
        ("project", job["project"]),
        ("status", job["status"]),
        ("reason", job["reason"]),
        ("since", job["since"]),
        ("waits for", queue.get("blocked_by")),
        ("place in the queue", queue.get("position")),
        ("short of", short_of(queue)),
        ("workers", f"{workers['active']} active of {between(workers)}"),
        ("step", steps(job)),
        ("left", span(progress["eta_s"]) if progress["eta_s"] is not None else None),
        ("samples/s", figure(progress["samples_per_s"]) if progress["samples_per_s"] is not None else None),
        ("metrics", ", ".join(f"{name} {figure(value)}" for name, value in latest.items())),
        ("attempts", counters["attempts"]),
        ("workers replaced", counters["workers_replaced"]),
        ("steps skipped", counters["steps_skipped"]),
        ("created", job["created_at"]),
        ("finished", job["finished_at"]),
        ("receipt", receipt_line(job.get("receipt"))),
        ("can be", ", ".join(job["allowed_actions"])),
        ("dashboard", (job.get("links") or {}).get("ray_dashboard")),
    ]
    print_fields(fields)
    for warning in job["warnings"]:
        print(f"Warning: {warning}")
    if job["status"] == "failed":
        print("\n".join(["", *failure_lines(job, whole=trace)]))
    elif job["message"] and not queue:
        print(f"\n{job['message']}")


def receipt_line(receipt: Item | None) -> str | None:
    """What is known of the end of the newest attempt's processes."""
    if receipt is None:
        return None
    pids = [str(pid) for node in receipt["nodes"] for pid in node["pids"]]
    ended = f", pids {', '.join(pids)}" if pids else ""
    proven = "proven" if receipt["proven"] else "NOT proven"
    return f"{proven}: {receipt['message']}{ended} ({receipt['seconds']} s)"


def between(workers: Item) -> str:
    """Such as `2 to 3 workers`."""
    low, high = workers["min"], workers["max"]
    return f"{low} to {high} workers" if low < high else f"{high} worker{'' if high == 1 else 's'}"


def steps(job: Item) -> str:
    progress = job["progress"]
    total = progress["total_steps"]
    return f"{progress['step']}/{'?' if total is None else total}"


def age_s(at: str) -> float:
    return time.time() - datetime.fromisoformat(at).timestamp()


def scale(
    job_id: JobId,
    workers: Annotated[str, typer.Argument(metavar="MIN[:MAX]", help="3 means exactly 3.")],
    output: Output = Format.table,
) -> None:
    """Change how many workers a job has, while it trains."""
    low, _, high = workers.partition(":")
    if ":" not in workers:
        high = low
    try:
        minimum, maximum = int(low), int(high)
    except ValueError:
        raise FixRequest(
            f"{workers!r} is not a range of workers: give MIN or MIN:MAX, such as 2:4."
        ) from None
    job = Client().job(job_id).scale(minimum, maximum).data
    now = job["workers"]
    show(job, output, lambda: print(f"Job {job['id']} has {between(now)} from now on."))


def wait(
    job_id: JobId,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", min=0, help="Give up after S seconds.")
    ] = None,
    output: Output = Format.table,
) -> int:
    """Wait until a job has ended; the exit code says how."""
    job = Client().job(job_id, timeout).wait(timeout).data
    if job["status"] == "cancelled":
        raise JobFailed(job)
    show(job, output, lambda: print(f"Job {job['id']} {job['status']}."))
    return 0


COMMANDS = (submit, ls, get, scale, wait)

"""Commands on what a job tells: logs, events, metrics."""

import csv
import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from elastrain.api.cli.output import Format, Output, figure, say, show, show_items
from elastrain.api.cli.plot import chart, sparkline
from elastrain.api.cli.traces import headline
from elastrain.client import Client, Job

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, shortened while unique.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Stay until the job has ended.")]


def logs(
    job_id: JobId,
    follow: Follow = False,
    worker: Annotated[
        str | None, typer.Option(metavar="N", help="Only this one: 3 or w3, driver, setup.")
    ] = None,
    attempt: Annotated[int | None, typer.Option(help="Not the current attempt but this one.")] = None,
    tail: Annotated[int | None, typer.Option(help="Only the last lines.")] = None,
    output: Output = Format.table,
) -> int:
    """Print what a job's workers print."""
    client = Client()
    job = client.job(job_id)
    name = f"w{worker}" if worker is not None and worker.isdigit() else worker
    lines = Lines(prefixed=name is None, raw=output is Format.json)
    if follow:
        return follow_logs(job, name, attempt, lines)
    if name is not None and tail is None and output is not Format.json:
        return copy_log(client, job, name, attempt)
    wished = {"worker": name, "attempt": attempt, "tail": tail}
    params: dict[str, Any] = {key: value for key, value in wished.items() if value is not None}
    while True:
        page = client.http.json("GET", f"{job.path}/logs", params=params)
        for line in page["items"]:
            lines.take(line)
        place = "offset" if name else "cursor"
        following = page[f"next_{place}"]
        if tail is not None or not page["truncated"] or following == params.get(place):
            lines.flush()
            return 0
        params[place] = following


def follow_logs(job: Job, worker: str | None, attempt: int | None, lines: "Lines") -> int:
    """Prints output as it comes; the exit code is that of the job's end."""
    try:
        for update in job.logs(worker, attempt):
            if update.kind == "log":
                lines.take(update.data)
            else:
                lines.flush()
                return 0 if update.data["status"] == "succeeded" else 1
    except KeyboardInterrupt:
        say(f"Detached; job {job.id} goes on. Come back with: elastrain logs {job.id} -f")
        return 130
    return 0


def copy_log(client: Client, job: Job, worker: str, attempt: int | None) -> int:
    """One worker's output byte for byte."""
    params = {"worker": worker, **({} if attempt is None else {"attempt": attempt})}
    with client.http.stream(f"{job.path}/logs", params=params, headers={"Accept": "text/plain"}) as response:
        for chunk in response.iter_bytes():
            sys.stdout.buffer.write(chunk)
    sys.stdout.flush()
    return 0


class Lines:
    """Whole lines of several workers on one output; a piece that ends in mid-line waits for its rest."""

    def __init__(self, *, prefixed: bool, raw: bool) -> None:
        self.prefixed = prefixed
        self.raw = raw
        self.rests: dict[str, str] = {}

    def take(self, piece: Mapping[str, Any]) -> None:
        """A piece of a log: {worker, text, ...}."""
        if self.raw:
            print(json.dumps(piece, ensure_ascii=False), flush=True)
            return
        worker = str(piece["worker"])
        *whole, rest = (self.rests.get(worker, "") + piece["text"]).split("\n")
        self.rests[worker] = rest
        for line in whole:
            self.put(worker, line)

    def put(self, worker: str, line: str) -> None:
        print(f"{worker} | {line}" if self.prefixed else line, flush=True)

    def flush(self) -> None:
        """What never got its newline."""
        for worker, rest in self.rests.items():
            if rest:
                self.put(worker, rest)


def events(job_id: JobId, follow: Follow = False, output: Output = Format.table) -> int:
    """Print what happened to a job."""
    job = Client().job(job_id)
    if not follow:
        columns = [
            ("at", lambda item: clock(item["at"])),
            ("type", lambda item: item["type"]),
            ("message", lambda item: headline(item["message"])),
        ]
        show_items(job.events(), output, columns, "Nothing happened yet.")
        return 0
    try:
        for update in job.follow(("event",)):
            if update.kind == "end":
                return 0 if update.data["status"] == "succeeded" else 1
            as_json = output is Format.json
            print(json.dumps(update.data) if as_json else event_line(update.data), flush=True)
    except KeyboardInterrupt:
        say(f"Detached; job {job.id} goes on. Come back with: elastrain events {job.id} -f")
        return 130
    return 0


def event_line(event: Mapping[str, Any]) -> str:
    return f"{clock(event['at'])}  {event['type']:<20}  {headline(event['message'])}"


def clock(at: str) -> str:
    """The time of day of an RFC 3339 time, in UTC."""
    return at[11:19]


def metrics(
    job_id: JobId,
    names: Annotated[str | None, typer.Option(help="Only these, comma-separated.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the curves.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="One row a step.")] = False,
    points: Annotated[int, typer.Option(min=1, help="At most so many per name.")] = 1000,
    output: Output = Format.table,
) -> None:
    """Print a job's metrics."""
    found = Client().job(job_id).metrics(names.split(",") if names else (), points=points)
    curves = {name: rows for name, rows in sorted(found.items()) if name != "superseded"}
    if as_csv:
        write_csv(curves)
    elif plot:
        if not curves:
            say("No metrics yet.")
        for name, rows in curves.items():
            print("\n".join([*chart(name, [(row[0], row[1]) for row in rows]), ""]))
    else:
        show(found, output, lambda: print_metrics(curves))


def print_metrics(curves: Mapping[str, list[list[Any]]]) -> None:
    columns = [
        ("name", lambda item: item["name"]),
        ("step", lambda item: item["rows"][-1][0]),
        ("value", lambda item: figure(item["rows"][-1][1])),
        ("curve", lambda item: sparkline([row[1] for row in item["rows"]])),
    ]
    items = [{"name": name, "rows": rows} for name, rows in curves.items() if rows]
    show_items(items, Format.table, columns, "No metrics yet.")


def write_csv(curves: Mapping[str, list[list[Any]]]) -> None:
    """A column per name; a step that a name has no value for leaves its cell empty."""
    rows: dict[int, dict[str, Any]] = {}
    for name, curve in curves.items():
        for step, value, _ in curve:
            rows.setdefault(step, {})[name] = value
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["step", *curves])
    for step in sorted(rows):
        writer.writerow([step, *(rows[step].get(name, "") for name in curves)])


COMMANDS = (logs, events, metrics)

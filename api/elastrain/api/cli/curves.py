"""A job's curves in other people's tools: TensorBoard's event files, and an MLflow server if one is set."""

import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

import typer

from elastrain.api.cli.event_files import EventFiles
from elastrain.api.cli.mlflow_sink import MlflowSink
from elastrain.api.cli.output import say
from elastrain.client import Client, Job

POINTS = 100_000  # per name, if the job has ended or is not followed


class Point(NamedTuple):
    """What one step said. at: seconds since the epoch. era: (attempt, rollbacks in it)."""

    step: int
    at: float
    era: tuple[int, int]
    values: Mapping[str, Any]  # numbers, or NaN and infinities as text


class Sink(Protocol):
    """Where points go, in the order in which they were made."""

    def point(self, step: int, at: float, values: Mapping[str, Any]) -> None: ...

    def back_to(self, step: int) -> None:
        """What was said about this step and later ones holds no longer: they are computed again."""

    def close(self, status: str) -> None:
        """status: the job's, as far as it is known."""


def tensorboard(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job's id, shortened while unique.")],
    logdir: Annotated[
        Path, typer.Option(help="Folder of TensorBoard; each job gets one of its own in it.")
    ] = Path("runs"),
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay until the job has ended.")] = False,
) -> int:
    """Write a job's metrics as TensorBoard event files, and to MLflow if MLFLOW_TRACKING_URI is set."""
    job = Client().job(job_id)
    folder = logdir / f"{job.data['name']}-{job.id}"
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow = MlflowSink(uri, job.data, os.environ) if uri else None
    sinks: list[Sink] = [EventFiles(folder, job.data)]
    if mlflow is not None:
        say(f"MLflow: run {mlflow.run.id} in experiment {mlflow.run.experiment!r} of {uri}")
        sinks.append(mlflow)
    say(f"TensorBoard: tensorboard --logdir {logdir}")
    count = 0
    try:
        for point in ordered(followed(job) if follow else known(job), sinks):
            count += 1
            for sink in sinks:
                sink.point(point.step, point.at, point.values)
    except KeyboardInterrupt:
        say(f"Detached; job {job.id} goes on. Again from the start: elastrain tensorboard {job.id} -f")
        return 130
    finally:
        for sink in sinks:
            sink.close(job.status)
    say(f"{count} points of job {job.id} ({job.refresh().status}) are in {folder}")
    return 0


def known(job: Job) -> Iterator[Point]:
    """What holds now, steps ascending."""
    curves = job.metrics(points=POINTS)
    curves.pop("superseded", None)
    steps: dict[int, tuple[float, dict[str, Any]]] = {}
    for name, rows in curves.items():
        for step, value, at in rows:
            steps.setdefault(step, (seconds(at), {}))[1][name] = value
    for step in sorted(steps):
        yield Point(step, steps[step][0], (0, 0), steps[step][1])


def followed(job: Job) -> Iterator[Point]:
    """All that was said from the start, and what is said until the job's end."""
    for update in job.follow(("metric",)):
        if update.kind == "metric":
            data = update.data
            yield Point(
                data["step"], seconds(data["at"]), (data["attempt"], data["epoch_no"]), data["values"]
            )
    job.refresh()


def ordered(points: Iterator[Point], sinks: list[Sink]) -> Iterator[Point]:
    """Those that hold when they come; the sinks hear of it when steps begin to be computed again."""
    era, last = (0, 0), 0
    for point in points:
        if point.era < era:  # the last words of an attempt that another one has followed
            continue
        if point.era > era:
            if point.step <= last:
                for sink in sinks:
                    sink.back_to(point.step)
            era, last = point.era, 0
        last = max(last, point.step)
        yield point


def seconds(at: str) -> float:
    """An RFC 3339 time as seconds since the epoch."""
    return datetime.fromisoformat(at).timestamp()


COMMANDS = (tensorboard,)

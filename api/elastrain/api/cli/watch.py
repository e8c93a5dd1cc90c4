"""`follow`: a job's progress as it happens, redrawn on a terminal, line by line elsewhere."""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

import typer

from elastrain.api.cli.feeds import event_line
from elastrain.api.cli.output import Format, Output, figure, say, span
from elastrain.api.cli.plot import sparkline
from elastrain.api.cli.traces import failure_lines
from elastrain.client import Client, Job, Update
from elastrain.client.errors import ElastrainError

INTERRUPTED = 130
REFRESH_S = 2.0  # how often the job itself is read again while it trains
LINE_EVERY_S = 2.0  # where lines are not redrawn, a step is worth one at most so often

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, shortened while unique.")]


def follow(job_id: JobId, output: Output = Format.table) -> int:
    """Show a job's progress until it has ended; ctrl-C only stops the showing."""
    return watch(Client().job(job_id), output)


def watch(job: Job, output: Format) -> int:
    """Follows `job`; returns the exit code: 0 succeeded, 1 failed or cancelled, 130 detached."""
    if output is Format.json:
        show: Screen = JsonLines()
    elif sys.stdout.isatty():
        show = Redrawn(Progress(job))
    else:
        show = Plain(Progress(job))
    try:
        with show.opened():
            for update in job.follow():
                show.take(update)
    except KeyboardInterrupt:
        say(f"\nDetached; job {job.id} goes on. Come back with: elastrain follow {job.id}")
        return INTERRUPTED
    return ended(job.refresh(), quiet=output is Format.json)


def ended(job: Job, *, quiet: bool) -> int:
    """The last word on a job; returns the exit code."""
    if job.status == "failed":
        print("\n".join(failure_lines(job.data)), file=sys.stderr)
    elif not quiet:
        latest = job.data["metrics"].get("latest") or {}
        tail = "".join(f", {name} {figure(value)}" for name, value in latest.items() if name in SUMMARY)
        print(f"Job {job.id} {job.status} after {job.data['progress']['step']} steps{tail}.")
        if job.status == "succeeded":
            print(f"The model: elastrain download {job.id}")
    return 0 if job.status == "succeeded" else 1


SUMMARY = ("loss", "val_loss", "val_accuracy")


class Progress:
    """What is known of a followed job: its last state, its curve, its last step's values."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.step = int(job.data["progress"]["step"])
        self.losses: list[tuple[int, Any]] = []
        self.values: dict[str, Any] = {}
        self.read_at = time.monotonic()

    def take(self, update: Update) -> None:
        """An event or a step's metrics."""
        if update.kind == "metric":
            self.step = int(update.data["step"])
            self.values |= update.data["values"]
            self.remember(self.step, update.data["values"].get("loss"))
        self.reread(update.kind == "event" and update.data["type"].startswith("job."))

    def remember(self, step: int, loss: Any) -> None:
        """The curve, without what a new attempt trains again."""
        while self.losses and self.losses[-1][0] >= step:
            self.losses.pop()
        if loss is not None:
            self.losses.append((step, loss))

    def reread(self, now: bool) -> None:
        """Reads the job's state at most every few seconds. Without an answer the last state stays."""
        if now or time.monotonic() - self.read_at > REFRESH_S:
            self.read_at = time.monotonic()
            try:
                self.job.refresh()
            except ElastrainError:  # the stream notices a lost service, and says so if it stays away
                pass

    @property
    def total(self) -> int | None:
        total: int | None = self.job.data["progress"]["total_steps"]
        return total

    @property
    def curve(self) -> str:
        return sparkline([loss for _, loss in self.losses])

    @property
    def state(self) -> str:
        """The status, and why if there is a reason."""
        data = self.job.data
        waits = (data["queue"] or {}).get("blocked_by") or data["reason"]
        return f"{data['status']} ({waits})" if waits else str(data["status"])

    def speed(self) -> str:
        """Such as `486 samples/s, 2 workers, 9s left`."""
        workers = self.values.get("workers", self.job.data["workers"]["active"])
        rate, left_s = self.values.get("samples_per_s"), self.job.data["progress"]["eta_s"]
        parts = [] if rate is None else [f"{figure(rate)} samples/s"]
        parts.append(f"{figure(workers)} worker{'' if workers == 1 else 's'}")
        parts += [] if left_s is None else [f"{span(left_s)} left"]
        return ", ".join(parts)

    def line(self) -> str:
        """The last step in one line."""
        step = f"step {self.step}" + (f"/{self.total}" if self.total else "")
        return f"{step}  loss {figure(self.values.get('loss'))}  {self.speed()}"


class Screen:
    """Where updates go."""

    def opened(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def take(self, update: Update) -> None:
        raise NotImplementedError


class JsonLines(Screen):
    """Every update as one line of JSON."""

    def take(self, update: Update) -> None:
        print(json.dumps({"kind": update.kind, "id": update.id, "data": update.data}), flush=True)


class Plain(Screen):
    """Lines for logs and pipes: every event, and a step now and then."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.said_at = 0.0
        self.unsaid = False

    def take(self, update: Update) -> None:
        if update.kind == "end":
            self.step_line(LINE_EVERY_S if self.unsaid else 0.0)
            return
        self.progress.take(update)
        if update.kind == "event":
            print(event_line(update.data), flush=True)
        else:
            self.unsaid = True
            self.step_line(time.monotonic() - self.said_at)

    def step_line(self, silence_s: float) -> None:
        """Says the last step, if the last line is old enough."""
        if silence_s >= LINE_EVERY_S:
            self.said_at = time.monotonic()
            self.unsaid = False
            print(self.progress.line(), flush=True)


class Redrawn(Screen):
    """A panel at the bottom of the terminal; events scroll by above it."""

    def __init__(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.live import Live

        self.progress = progress
        self.console = Console(markup=False, highlight=False, emoji=False)
        self.live = Live(console=self.console, get_renderable=self.panel, refresh_per_second=4)

    def opened(self) -> AbstractContextManager[Any]:
        return self.live

    def take(self, update: Update) -> None:
        if update.kind == "end":
            return
        self.progress.take(update)
        if update.kind == "event":
            from rich.text import Text

            self.console.print(Text(event_line(update.data), style=event_style(update.data)))

    def panel(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress, total = self.progress, self.progress.total
        head = Text(f"{progress.job.data['name']}  {progress.job.id}  {progress.state}", style="bold")
        bar = ProgressBar(total=total, completed=min(progress.step, total), width=60) if total else Text("")
        loss = Text(f"loss {figure(progress.values.get('loss'))}  ")
        loss.append(progress.curve, style="cyan")
        lines = Table.grid()
        for line in (head, bar, Text(f"step {progress.step}/{total or '?'}  {progress.speed()}"), loss):
            lines.add_row(line)
        return lines


_BAD = ("worker.lost", "job.failed", "checkpoint.failed", "rollback", "corruption", "loss.spike")


def event_style(event: Mapping[str, Any]) -> str:
    """Losses in red, arrivals in green, the rest dim."""
    kind = str(event["type"])
    if kind in _BAD:
        return "red"
    return (
        "green"
        if kind in ("worker.joined", "worker.replaced", "checkpoint.saved", "job.succeeded")
        else "dim"
    )


COMMANDS = (follow,)

"""What the demo shows: a story line by line, and on a terminal a live panel below it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from elastrain.api.cli.demo_record import Record
from elastrain.api.cli.output import console, figure
from elastrain.api.cli.plot import sparkline

MARKS = {"active": ("●", "green"), "lost": ("✗", "red"), "ended": ("·", "dim")}
BAR = 54  # characters, as long as the curve below it
LINE_EVERY_S = 5.0  # where nothing is redrawn


class Screen:
    """Tells the story. Without a terminal it is plain lines, one every few seconds while a job trains."""

    def __init__(self) -> None:
        self._console: Console = console()
        self._begun = time.monotonic()
        self._lined_at = 0.0

    def headline(self, text: str, below: str) -> None:
        self._console.print(Text(text, style="bold cyan"))
        self._console.print(Text(below, style="italic"), end="\n\n")

    def tell(self, mark: str, text: str, style: str = "") -> None:
        """One line of the story, with the seconds since it began."""
        line = Text().append(f"{time.monotonic() - self._begun:6.1f} s  ", style="dim")
        line.append(f"{mark} ", style=f"bold {style}")
        line.append(text, style=style)
        self._console.print(line)

    def last(self, text: str) -> None:
        """The one line for programs, as it is."""
        print(text, flush=True)

    @contextmanager
    def live(self) -> Iterator["Panel"]:
        """A panel while a job trains."""
        if not self._console.is_terminal:
            yield Panel(None, self)
            return
        with Live(console=self._console, refresh_per_second=8, transient=True) as live:
            yield Panel(live, self)

    def line(self, text: str) -> None:
        """A line about the going, at most one every few seconds."""
        if time.monotonic() - self._lined_at >= LINE_EVERY_S:
            self._lined_at = time.monotonic()
            self.tell(" ", text, "dim")


class Panel:
    """A job's bar, curve and workers."""

    def __init__(self, live: Live | None, screen: Screen) -> None:
        self._live = live
        self._screen = screen

    def show(self, job: Mapping[str, Any], record: Record, workers: Sequence[Mapping[str, Any]]) -> None:
        total = job["progress"]["total_steps"]
        if self._live is not None:
            self._live.update(_drawn(job, record, workers, total))
        elif record.step:
            self._screen.line(f"step {record.step}/{total}  {_figures(record)}  {_crew(workers).plain}")


def _drawn(
    job: Mapping[str, Any], record: Record, workers: Sequence[Mapping[str, Any]], total: int | None
) -> Group:
    if not record.step:
        return Group(Text(""), Text(f"  {_waiting(job)} ...", style="dim"))
    done = min(BAR, BAR * record.step // (total or record.step))
    bar = Text("  ").append("━" * done, style="green").append("━" * (BAR - done), style="bright_black")
    curve = Text("  loss ")
    curve.append(sparkline(record.losses, BAR - 5), style="cyan")
    return Group(
        Text(""),
        Text(f"  step {record.step}/{total or '?'}   {_figures(record)}"),
        bar,
        curve,
        Text("  ").append_text(_crew(workers)),
    )


def _waiting(job: Mapping[str, Any]) -> str:
    reason = f": {job['reason']}" if job["reason"] else ""
    return f"{job['status']}{reason}".replace("_", " ")


def _figures(record: Record) -> str:
    speed = record.values.get("samples_per_s")
    parts = [f"loss {figure(record.values.get('loss'))}"]
    parts += [f"{speed:.0f} samples/s"] if isinstance(speed, int | float) else []
    return "   ".join(parts)


def _crew(workers: Sequence[Mapping[str, Any]]) -> Text:
    """Such as `● w0  ✗ w1 lost  ◌ w2 starting`."""
    crew = Text()
    for worker in workers:
        mark, style = MARKS.get(worker["state"], ("◌", "yellow"))
        state = "" if worker["state"] == "active" else f" {worker['state']}"
        crew.append(f"{mark} {worker['id']}{state}  ", style=style)
    return crew

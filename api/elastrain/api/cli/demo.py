"""`elastrain demo`: two workers train, one is killed, nothing is lost. The figures are measured, not claimed.

The story:
    start everything in a temporary HOME -> submit with 2 workers -> SIGKILL one of them on the way
    -> the other goes on, a replacement joins -> the same spec again, undisturbed, with 1 worker -> compare
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastrain.api.cli import demo_server
from elastrain.api.cli.demo_record import Record
from elastrain.api.cli.demo_screen import Screen
from elastrain.client import Client, Job
from elastrain.client.errors import ElastrainError

SPEC = Path(__file__).parents[4] / "examples" / "digits.yaml"
KILL_AT = 0.2  # of the steps: the rest is long enough for a replacement to come
LOOK_EVERY_S = 0.4
LONGEST_S = 300.0  # per job, on a machine that has other things to do; 40 s where it has not


Look = Callable[[Job, Record, list[dict[str, Any]]], None]


class DemoFailed(Exception):
    """The story went wrong. The message says where."""


@dataclass
class Kill:
    """One worker's end."""

    worker: str
    pid: int
    step: int
    at: datetime
    survivors: dict[str, int] = field(default_factory=dict)  # worker -> pid


def demo(spec: Path | None = None) -> int:
    """Plays the story; returns 0 if every promise was kept."""
    screen = Screen()
    file = spec or SPEC
    screen.headline(
        "elastrain demo", "Two workers learn to read handwritten digits. One of them will not live to see it."
    )
    if not file.exists():
        screen.tell("✗", f"{file} is not there: name a spec, `elastrain demo FILE`", "red")
        return 2
    try:
        result = _play(file, screen)
    except (DemoFailed, demo_server.ServerFailed, ElastrainError) as error:
        screen.tell("✗", str(error), "red")
        return 1
    except KeyboardInterrupt:
        screen.tell("✗", "stopped; everything that was started has ended", "yellow")
        return 130
    screen.tell("✔", "nothing of it is left running", "green")
    screen.last(json.dumps(result))
    return 0 if result["digest_equal"] and result["steps_lost"] == 0 else 1


def _play(file: Path, screen: Screen) -> dict[str, Any]:
    screen.tell("▶", "starting Ray, the store and the API, all on this machine ...")
    with demo_server.running() as server:
        try:
            return _told(server, file, screen)
        finally:
            screen.tell("▶", "stopping everything ...")


def _told(server: demo_server.Server, file: Path, screen: Screen) -> dict[str, Any]:
    """Both runs, on a service that comes up; returns what was measured."""
    server.wait_ready()
    client = server.client()
    screen.tell("✔", f"everything is up at {client.http.url}", "green")
    disturbed, record, kill, first_step_s = _disturbed(client, file, screen)
    plain = _undisturbed(client, file, screen)
    equal = _compare(disturbed, plain, screen)
    accuracy = record.values.get("val_accuracy")
    pause_ms = record.pause_ms(kill.worker, kill.at)
    lost = record.lost(int(disturbed.data["progress"]["total_steps"]))
    return {
        "accuracy": round(float(accuracy), 4) if isinstance(accuracy, int | float) else None,
        "pause_ms": None if pause_ms is None else round(pause_ms, 1),
        "steps_lost": lost,
        "digest_equal": equal,
        "first_step_s": round(first_step_s, 2),
    }


def _disturbed(client: Client, file: Path, screen: Screen) -> tuple[Job, Record, Kill, float]:
    """The run with a death in it."""
    submitted_at = datetime.now(UTC)
    job = client.submit(file, overrides=["workers={min: 1, max: 2}"])
    screen.tell("✔", f"submitted {file.name} as job {job.id}, with 2 workers")
    story = _Story(screen, submitted_at)
    record = _watch(job, screen, story.look)
    if story.kill is None:
        raise DemoFailed(f"job {job.id} ended before two workers trained together; nobody could be killed")
    total = job.data["progress"]["total_steps"]
    lost = record.lost(int(total))
    many = "no step was lost" if lost == 0 else f"{lost} steps were lost"
    accuracy = record.values.get("val_accuracy")
    screen.tell("✔", f"{total} steps done, {many}; accuracy on unseen digits {_percent(accuracy)}", "green")
    return job, record, story.kill, story.first_step_s or 0.0


def _undisturbed(client: Client, file: Path, screen: Screen) -> Job:
    """The same spec, one worker, nobody dies."""
    job = client.submit(file, overrides=["workers={min: 1, max: 1}"])
    screen.tell("▶", f"once more, undisturbed, with 1 worker: job {job.id}")
    _watch(job, screen, lambda *_: None)
    return job


def _compare(disturbed: Job, plain: Job, screen: Screen) -> bool:
    ours, theirs = (job.checkpoint().params_digest for job in (disturbed, plain))
    if ours == theirs:
        screen.tell("✔", f"the same parameters, bit for bit: {ours[:16]}…", "green")
    else:
        screen.tell("✗", f"the parameters differ: {ours[:16]}… and {theirs[:16]}…", "red")
    return ours == theirs


class _Story:
    """Watches the job with the death in it: kills when it is time, and tells what follows."""

    def __init__(self, screen: Screen, submitted_at: datetime) -> None:
        self._screen = screen
        self._submitted_at = submitted_at
        self._told: set[str] = set()
        self.kill: Kill | None = None
        self.first_step_s: float | None = None

    def look(self, job: Job, record: Record, workers: list[dict[str, Any]]) -> None:
        total = int(job.data["progress"]["total_steps"] or 0)
        if self.first_step_s is None and record.first_step_at is not None:
            self.first_step_s = (record.first_step_at - self._submitted_at).total_seconds()
            self._screen.tell("✔", f"first step {self.first_step_s:.1f} s after the submit", "green")
        active = {worker["id"]: int(worker["pid"]) for worker in workers if worker["state"] == "active"}
        if self.kill is not None:
            self._aftermath(self.kill, record, active)
        elif total and record.step >= KILL_AT * total and len(active) >= 2:
            self._strike(record, active)

    def _strike(self, record: Record, active: dict[str, int]) -> None:
        victim = sorted(active)[-1]
        at = datetime.now(UTC)
        os.kill(active[victim], signal.SIGKILL)
        pid = active.pop(victim)
        self.kill = Kill(victim, pid, record.step, at, active)
        self._screen.tell("☠", f"killed {victim} (pid {pid}) with SIGKILL at step {record.step}", "bold red")

    def _aftermath(self, kill: Kill, record: Record, active: dict[str, int]) -> None:
        resumed = record.resumed_without(kill.worker, kill.at)
        if resumed and "resumed" not in self._told:
            self._told.add("resumed")
            names = " and ".join(f"{name} (still pid {pid})" for name, pid in kill.survivors.items())
            pause_ms = record.pause_ms(kill.worker, kill.at) or 0.0
            text = f"{names} went on with step {resumed[0]}, {pause_ms:.0f} ms after the kill"
            self._screen.tell("✔", text, "green")
        restarted = [name for name, pid in kill.survivors.items() if active.get(name, pid) != pid]
        if restarted:
            raise DemoFailed(f"{', '.join(restarted)} was restarted, and should not have been")
        newcomers = sorted(set(active) - set(kill.survivors) - {kill.worker})
        if newcomers and "joined" not in self._told:
            self._told.add("joined")
            self._screen.tell("✔", f"{newcomers[0]} joined at step {record.step}: two again", "green")


def _watch(job: Job, screen: Screen, look: Look) -> Record:
    """Shows the job until it has ended. Raises DemoFailed unless it succeeded."""
    record = Record()
    follower = threading.Thread(target=_follow, args=(job, record), daemon=True)
    follower.start()
    deadline = time.monotonic() + LONGEST_S
    with screen.live() as panel:
        while follower.is_alive():
            if time.monotonic() > deadline:
                raise DemoFailed(f"job {job.id} is still {job.status} after {LONGEST_S:.0f} s")
            workers = job.refresh().workers()
            look(job, record, workers)
            panel.show(job.data, record, workers)
            follower.join(LOOK_EVERY_S)
    look(job, record, job.workers())
    if job.refresh().status != "succeeded":
        raise DemoFailed(f"job {job.id} {job.status}: {job.data['message']}")
    return record


def _follow(job: Job, record: Record) -> None:
    for update in job.follow():
        record.take(update)


def _percent(share: Any) -> str:
    return f"{share:.1%}" if isinstance(share, int | float) else "unknown"

"""What the processes of a run write down, and how the bench reads it. No torch.

One JSON object per line in `{run}/events-{pid}.jsonl`. Times are time.monotonic(), which all processes of one
machine share. The one event that every system must write is `commit` (step, world): an optimizer step is
done, and this process has the updated parameters.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Event = dict[str, Any]
RUN = "BENCH_RUN"  # environment variable: the folder of the run, which also marks its processes


class Setting:
    """The folder of the run that this process belongs to, and what is set for it."""

    def __init__(self) -> None:
        self.folder = Path(os.environ[RUN])
        self.values: dict[str, Any] = json.loads((self.folder / "setting.json").read_text())

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


class Events:
    """The log of this process."""

    def __init__(self, who: str = "") -> None:
        self.who = who
        path = Path(os.environ[RUN], f"events-{os.getpid()}.jsonl")
        self._file = path.open("a", buffering=1)

    def __call__(self, event: str, **fields: Any) -> None:
        line = {"t": time.monotonic(), "event": event, "pid": os.getpid(), "who": self.who, **fields}
        self._file.write(json.dumps(line) + "\n")

    def ready(self, **fields: Any) -> None:
        """Everything is built; `cpu_s` is what the start took of a core."""
        self("ready", cpu_s=round(time.process_time(), 3), **fields)


class Reader:
    """All events of a run, as they come. Reads only what is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._at: dict[Path, int] = {}
        self._events: list[Event] = []

    def events(self, kind: str | None = None) -> list[Event]:
        """In order of time."""
        for path in self.folder.glob("events-*.jsonl"):
            self._read(path)
        self._events.sort(key=lambda e: e["t"])
        return [e for e in self._events if kind is None or e["event"] == kind]

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._at.get(path, 0))
            new = file.read()
        whole = new.rfind(b"\n") + 1  # a line may be half written
        self._at[path] = self._at.get(path, 0) + whole
        self._events.extend(json.loads(line) for line in new[:whole].splitlines())

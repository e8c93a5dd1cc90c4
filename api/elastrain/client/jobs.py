"""A job and its checkpoints, as handles over the service."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastrain.client.errors import Conflict, JobFailed, NotFound, ServiceBroken, TimedOut, Unreachable
from elastrain.client.files import download
from elastrain.client.http import Http
from elastrain.client.stream import Update, follow

ENDED = frozenset({"succeeded", "failed", "cancelled"})
PATIENCE_S = 120.0  # how long following waits for a service that went away
MODEL = "model.safetensors"
WAIT_POLL_S = 1.0
CHECKPOINT_POLL_S = 0.3


class Job:
    """One job. `data` is its last known state in the shape of the API; `refresh` reads it again."""

    def __init__(self, http: Http, data: dict[str, Any]) -> None:
        self._http = http
        self.data = data

    @property
    def id(self) -> str:
        return str(self.data["id"])

    @property
    def status(self) -> str:
        return str(self.data["status"])

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.id}"

    def refresh(self, within_s: float | None = None) -> "Job":
        """within_s: how long to try, if not as long as usual. Raises NotFound, Unreachable."""
        self.data = self._http.json("GET", self.path, within_s=within_s)
        return self

    def follow(
        self,
        kinds: Sequence[str] = ("event", "metric"),
        *,
        after: int = 0,
        patience_s: float = PATIENCE_S,
    ) -> Iterator[Update]:
        """Updates of these kinds from position `after` on, as they come; the last one is `end`.

        Reconnects without gap or repeat; raises Unreachable once the service was away for `patience_s`.
        """
        return follow(self._http, f"{self.path}/feed", {"kinds": list(kinds)}, after, patience_s)

    def logs(
        self, worker: str | None = None, attempt: int | None = None, *, patience_s: float = PATIENCE_S
    ) -> Iterator[Update]:
        """The output of one worker, or of all, from the start and as it comes."""
        params = {"worker": worker, "attempt": attempt}
        given = {name: value for name, value in params.items() if value is not None}
        return follow(self._http, f"{self.path}/logs", given, 0, patience_s)

    def wait(self, timeout_s: float | None = None) -> "Job":
        """Blocks until the job has ended, also across restarts of the service.

        Raises JobFailed if it failed, TimedOut after `timeout_s`, Unreachable if the service stays away.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        seen_at = time.monotonic()
        while True:
            try:
                left_s = None if until is None else max(0.0, until - time.monotonic())
                if self.refresh(left_s).status in ENDED:
                    break
                seen_at = time.monotonic()
            except Unreachable:
                if time.monotonic() - seen_at > PATIENCE_S:
                    raise
            left_s = WAIT_POLL_S if until is None else min(WAIT_POLL_S, until - time.monotonic())
            if left_s <= 0:
                raise TimedOut(f"Job {self.id} is still {self.status} after {timeout_s:g} s; it goes on.")
            time.sleep(left_s)
        if self.status == "failed":
            raise JobFailed(self.data)
        return self

    def scale(self, minimum: int, maximum: int | None = None) -> "Job":
        """Changes the range of workers; one number means exactly that many."""
        workers = {"min": minimum, "max": minimum if maximum is None else maximum}
        self.data = self._http.json("PATCH", self.path, json={"workers": workers})
        return self

    def cancel(self, force: bool = False) -> "Job":
        """Asks for the job's end; `wait` returns once all its processes are gone.

        force: for admins, when the cluster cannot prove that any more; the receipt then says so.
        """
        return self._ask("cancel", **({"force": "true"} if force else {}))

    def pause(self) -> "Job":
        """Has it save a checkpoint and give everything back; it is `paused` once that is done."""
        return self._ask("pause")

    def resume(self) -> "Job":
        """Puts a paused job back into the queue, to go on from its checkpoint."""
        return self._ask("resume")

    def retry(self) -> "Job":
        """A new attempt of a failed or cancelled job, from its newest good checkpoint."""
        return self._ask("retry")

    def clone(self, overrides: Mapping[str, Any] | None = None) -> "Job":
        """A new job from scratch, with this one's spec but for `overrides`."""
        return Job(self._http, self._http.json("POST", f"{self.path}/clone", json=dict(overrides or {})))

    def checkpoint_now(self, timeout_s: float | None = None) -> "Job":
        """Asks for a checkpoint; with `timeout_s` returns once it is saved.

        Raises Conflict if the job ended without it, TimedOut.
        """
        number = int(self._ask("checkpoint").data["checkpoint_requests"]["asked"])
        until = time.monotonic() + (timeout_s or 0.0)
        while timeout_s is not None and self.data["checkpoint_requests"]["done"] < number:
            if self.status in ENDED:
                raise Conflict(f"Job {self.id} is {self.status} and had not saved request {number}.")
            if time.monotonic() > until:
                raise TimedOut(f"Job {self.id} has not saved request {number} after {timeout_s:g} s.")
            time.sleep(CHECKPOINT_POLL_S)
            self.refresh()
        return self

    def pin(self, pinned: bool = True) -> "Job":
        """Whether it stays however long ago it ended."""
        self.data = self._http.json("PATCH", self.path, json={"pinned": pinned})
        return self

    def delete(self) -> None:
        """Removes an ended job and its data, checkpoints included."""
        self._http.send("DELETE", self.path)

    def _ask(self, action: str, **parameters: str) -> "Job":
        self.data = self._http.json("POST", f"{self.path}/{action}", params=parameters or None)
        return self

    def events(self, after: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """What happened after position `after`, oldest first."""
        return self._items("events", after=after, limit=limit)

    def metrics(
        self, names: Sequence[str] = (), *, from_step: int = 0, points: int = 1000
    ) -> dict[str, list[list[Any]]]:
        """`{name: [[step, value, at], ...]}`, and `superseded`."""
        params: dict[str, Any] = {"from_step": from_step, "points": points}
        if names:
            params["names"] = ",".join(names)
        found: dict[str, list[list[Any]]] = self._http.json("GET", f"{self.path}/metrics", params=params)
        return found

    def workers(self) -> list[dict[str, Any]]:
        return self._items("workers")

    def generations(self) -> list[dict[str, Any]]:
        return self._items("generations", limit=1000)

    def checkpoints(self) -> list["Checkpoint"]:
        """Those that are saved, oldest first."""
        items = self._items("checkpoints")
        return [Checkpoint(self._http, self.path, item) for item in items if item["state"] == "saved"]

    def checkpoint(self, step: int | None = None) -> "Checkpoint":
        """The one of `step`, or the newest. Raises NotFound naming the steps that there are."""
        found = self.checkpoints()
        for checkpoint in reversed(found):
            if step is None or checkpoint.step == step:
                return checkpoint
        there = ", ".join(str(checkpoint.step) for checkpoint in found) or "none"
        asked = "a checkpoint" if step is None else f"a checkpoint of step {step}"
        raise NotFound(f"Job {self.id} has not saved {asked}; saved steps: {there}.")

    def download(self, out: str | Path = ".", step: int | None = None) -> list[Path]:
        """Fetches the files of a checkpoint into folder `out`; returns their paths."""
        return self.checkpoint(step).download(out)

    def _items(self, what: str, **params: Any) -> list[dict[str, Any]]:
        """All items of a list, page after page."""
        items: list[dict[str, Any]] = []
        while True:
            page = self._http.json("GET", f"{self.path}/{what}", params=params)
            items += page["items"]
            if not page.get("next_cursor"):
                return items
            params["after" if what == "events" else "cursor"] = page["next_cursor"]


class Checkpoint:
    """One saved checkpoint; `data` is the item of the API."""

    def __init__(self, http: Http, job_path: str, data: dict[str, Any]) -> None:
        self._http = http
        self._path = f"{job_path}/checkpoints/{data['step']}"
        self.data = data

    @property
    def step(self) -> int:
        return int(self.data["step"])

    @property
    def params_digest(self) -> str:
        return str(self.data["params_digest"])

    def download(self, out: str | Path = ".", names: Sequence[str] | None = None) -> list[Path]:
        """Fetches its files (or only those named) into folder `out`, each checked against its sha256."""
        files = [file for file in self.data["files"] if names is None or file["name"] in names]
        for file in files:
            if Path(file["name"]).name != file["name"]:  # it would land outside `out`
                raise ServiceBroken(f"The checkpoint lists a file named {file['name']!r}, which is a path.")
        return [
            download(self._http, f"{self._path}/{file['name']}", file, Path(out) / file["name"])
            for file in files
        ]

    def load(self) -> dict[str, Any]:
        """The model's state, name to tensor, for `model.load_state_dict`. Needs safetensors and torch."""
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory() as folder:
            paths = self.download(folder, [MODEL])
            if not paths:
                raise NotFound(f"The checkpoint of step {self.step} has no {MODEL}.")
            state: dict[str, Any] = load_file(paths[0])
        return state

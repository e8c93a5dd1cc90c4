"""The driver's side of checkpoints: gather what the owners uploaded, write the manifest last. No torch."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from elastrain.trainers.checkpoints.fence import Fence
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.numerics.data import Plan
from elastrain.trainers.reporting.facts import event, now
from elastrain.trainers.spec import JobSpec, spec_digest
from elastrain.trainers.spec.source import MODEL_ONLY, OUT_OF_ORDER, NoSource, Source, moved, place
from elastrain.trainers.spec.strategies import asynchronous
from elastrain.trainers.storage import AlreadyExists, NotFound, Storage, StorageError
from elastrain.trainers.strategies import orders
from elastrain.trainers.strategies.ledger import ORDER

log = logging.getLogger(__name__)

FORMAT = 1


@dataclass
class Pending:
    """A checkpoint whose parts are on their way. One per step and generation."""

    step: int
    workers: tuple[str, ...]  # by rank
    parts: dict[int, Json] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)  # when the first rank copied its state

    @property
    def missing(self) -> list[str]:
        return [w for r, w in enumerate(self.workers) if r not in self.parts]


class Checkpoints:
    """Of one job, seen from one attempt. `emit` takes facts."""

    def __init__(
        self, storage: Storage, job: str, attempt: int, spec: JobSpec, emit: Callable[[Json], None]
    ) -> None:
        self.storage, self.job, self.attempt, self.spec, self.emit = storage, job, attempt, spec, emit
        self.root = f"jobs/{job}/checkpoints"
        self.pending: dict[tuple[int, int], Pending] = {}
        self.fence = Fence(storage, job, attempt)
        self.plan: Plan | None = None
        self.source_step: int | None = None  # of the other job's checkpoint, once that was offered
        self.began: Json | None = None  # the other job's checkpoint with which this one began
        self.repetition: orders.Repetition | None = None  # what strategy.replay says, once taken over

    def own(self, manifest: Json) -> bool:
        """Whether it is of this job, and not of the one that it begins from."""
        return bool(manifest["job"] == self.job)

    def changed(self, manifest: Json) -> str | None:
        """What of the data has changed since one of this job's own checkpoints; None: nothing, or it does not
        say."""
        return moved(manifest["place"], self._place) if "place" in manifest else None

    # ---- saving -----------------------------------------------------------------------------

    def arrived(self, message: Json, workers: tuple[str, ...]) -> Pending | None:
        """A rank's upload is done. Returns the checkpoint if it was the last one missing."""
        key = (message["step"], message["generation"])
        pending = self.pending.setdefault(key, Pending(message["step"], workers))
        pending.parts[message["rank"]] = message
        pending.began = min(pending.began, time.monotonic() - message.get("seconds", 0.0))
        return self.pending.pop(key) if not pending.missing else None

    def lost(self, worker: str) -> list[int]:
        """A worker is gone. Returns the steps whose checkpoint can no longer become whole."""
        failed = [key for key, pending in self.pending.items() if worker in pending.missing]
        for key in failed:
            self.fail(key, f"{worker} was lost before it had uploaded its part")
        return [step for step, _ in failed]

    def fail(self, key: tuple[int, int], why: str) -> None:
        if self.pending.pop(key, None) is not None:
            text = f"checkpoint {key[0]} failed: {why}; another one is made at the next boundary"
            self.emit(event("checkpoint.failed", text, {"step": key[0]}))

    def save(self, pending: Pending) -> None:
        """Write the manifest: from this moment the checkpoint exists. Raises StorageError.

        A later attempt fences this one: if it has claimed, nothing is written.
        """
        manifest = self._manifest(pending)
        key, data = f"{self._prefix(pending.step)}/manifest.json", json.dumps(manifest, indent=1).encode()
        self.fence.check()
        try:
            self.storage.put(key, data)
        except AlreadyExists:  # saved by another generation: the same bits; or by us, and the answer was lost
            if self.storage.get(key) != data:
                return
        self.emit({**self._fact(manifest), "seconds": round(time.monotonic() - pending.began, 3)})
        text = f"checkpoint {pending.step} saved ({sum(f['bytes'] for f in manifest['files'])} bytes)"
        self.emit(
            event(
                "checkpoint.saved", text, {"step": pending.step, "params_digest": manifest["params_digest"]}
            )
        )
        try:
            self._retain(manifest["cursor"])
        except StorageError as error:  # what is old stays a while longer; the new one is saved all the same
            log.warning("checkpoints of %s could not be tidied up: %s", self.job, error)

    def _manifest(self, pending: Pending) -> Json:
        first = pending.parts[0]
        model, cursor = first["model"], first["model"]["cursor"]
        parts = [p["part"] for _, p in sorted(pending.parts.items()) if p["part"] is not None]
        order = [model["order"]] if "order" in model else []
        named = (model, *parts, *order)
        files = [{"name": p["file"], "bytes": p["bytes"], "sha256": p["sha256"]} for p in named]
        return {
            "format": FORMAT,
            "job": self.job,
            "attempt": self.attempt,
            "generation": first["generation"],
            "created_at": now(),
            "step": pending.step,
            "updates": cursor["updates"],
            "epoch": self.plan.epoch(pending.step - 1) + 1 if self.plan is not None else 0,
            "samples_seen": self.plan.samples_seen(pending.step) if self.plan is not None else 0,
            "params": model["params"],
            "parts": parts,
            "files": files,
            "cursor": cursor,
            "metrics": cursor["metrics"] if cursor["evaluated_step"] == pending.step else {},
            "threads": self.spec.threads,
            "spec_digest": spec_digest(self.spec),
            "params_digest": model["params_digest"],
            "state_digest": state_digest(model, [p["digests"] for p in pending.parts.values()]),
            "sample_chain": cursor["chain"],
            "place": self._place,
            orders.BEGAN: self.began,
        }

    @property
    def _place(self) -> Json:
        return place(self.spec, self.plan.n if self.plan is not None else None)

    def _fact(self, manifest: Json, state: str = "saved") -> Json:
        shown = ("step", "epoch", "created_at", "params_digest", "state_digest", "metrics", "files")
        return {
            "kind": "checkpoint",
            "at": now(),
            "state": state,
            "bytes": sum(f["bytes"] for f in manifest["files"]),
            **{k: manifest[k] for k in shown},
        }

    def _retain(self, cursor: Json) -> None:
        """Keep the newest `keep`; and where the job may roll back, or steps are being skipped, the newest one
        that is proven to be good. The manifest goes first: a checkpoint without one does not exist.
        cursor: of the newest."""
        steps, spec = self.steps(), self.spec
        old = steps[: max(0, len(steps) - max(1, spec.checkpoint.keep))]
        rolls_back = "rollback" in (spec.non_finite.policy, spec.loss_spike.policy)
        if rolls_back or cursor.get("skipped_in_row"):
            good = max((step for step in steps if step <= cursor.get("proven", 0)), default=None)
            old = [step for step in old if step != good]
        self.fence.check()
        for step in old:
            manifest = self.read(step)
            for entry in sorted(self.storage.list(self._prefix(step)), key=lambda e: "manifest" not in e.key):
                self.storage.delete(entry.key)
            if manifest is not None:
                self.emit(self._fact(manifest, "deleted"))

    # ---- finding ----------------------------------------------------------------------------

    def steps(self, root: str | None = None) -> list[int]:
        """Steps that have a manifest, in order, of all attempts of the job."""
        root, found = root or self.root, []
        for entry in self.storage.list(root):
            folder, _, name = entry.key.removeprefix(f"{root}/").partition("/")
            if name == "manifest.json" and folder.isdigit():
                found.append(int(folder))
        return sorted(found)

    def read(self, step: int, root: str | None = None) -> Json | None:
        try:
            manifest = json.loads(self.storage.get(f"{_folder(root or self.root, step)}/manifest.json"))
        except (NotFound, ValueError):
            return None
        return manifest if isinstance(manifest, dict) else None

    def newest(self) -> tuple[str, Json] | None:
        """(folder, manifest) of the newest checkpoint whose files are all there in full length; without one,
        of that which the spec says to begin from. Worse ones are set aside, with an event each. Contents are
        verified by whoever loads them. Raises StorageError; NoSource if there is nothing to begin from."""
        self.repetition = self.repetition or orders.take_over(self.storage, self.job, self.spec)
        # amid the order it goes on from no checkpoint of its own: it needs versions of the past
        repeats = self.repetition.steps if self.repetition is not None else 0
        for step in (step for step in reversed(self.steps()) if step >= repeats):
            manifest = self.read(step)
            why = self._fault_of(manifest, step, self.root)
            if why is None and manifest is not None:
                self.began = manifest.get(orders.BEGAN)
                return self._prefix(step), manifest
            self.set_aside(step, why or "its manifest cannot be read")
        return self._beginning()

    def _beginning(self) -> tuple[str, Json] | None:
        """Where a job without a checkpoint of its own begins. Raises NoSource."""
        found = self._source() if self.spec.resume_from else None
        self.began = orders.beginning(found[1]) if found is not None else None
        if self.repetition is not None and self.plan is not None:  # else it is not known yet what is taken
            step = found[1]["cursor"]["step"] if found is not None else 0
            before = orders.read_order(self.storage, *found) if found is not None and step else []
            self.repetition.must_begin(self.began, step, before)
        return found

    def _source(self) -> tuple[str, Json]:
        """The other job's checkpoints are only read: they are not ours to set aside."""
        source = Source.parse(self.spec.resume_from or "")
        root = f"jobs/{source.job}/checkpoints"
        step = source.step if source.step is not None else self.source_step
        if step is None and (step := max(self.steps(root), default=None)) is None:
            raise NoSource(f"resume_from {source}: that job has no checkpoint")
        manifest = self.read(step, root)
        why = self._fault_of(manifest, step, root)
        if why is not None or manifest is None:
            raise NoSource(f"resume_from {source}: checkpoint {step} cannot be used: {why}")
        self.source_step, folder = step, _folder(root, step)
        if (other := moved(manifest.get("place", {}), self._place)) is not None:
            return folder, {**manifest, "cursor": Cursor().to_json(), "parts": [], MODEL_ONLY: other}
        if any(f["name"] == ORDER for f in manifest["files"]) and not asynchronous(self.spec.strategy):
            raise NoSource(f"resume_from {source}: {OUT_OF_ORDER}")
        return folder, manifest

    def _fault_of(self, manifest: Json | None, step: int, root: str) -> str | None:
        if manifest is None or manifest.get("format") != FORMAT or manifest.get("step") != step:
            return "its manifest is not there or cannot be read"
        for file in manifest["files"]:
            try:
                size = self.storage.size(f"{_folder(root, step)}/{file['name']}")
            except NotFound:
                return f"{file['name']} is missing"
            if size != file["bytes"]:
                return f"{file['name']} has a size of {size} bytes, the manifest says {file['bytes']}"
        return None

    def discard_after(self, step: int, why: str) -> None:
        """Set aside the checkpoints of later steps. Raises StorageError."""
        for later in [s for s in self.steps() if s > step]:
            self.set_aside(later, why, "of no use")

    def set_aside(self, step: int, why: str, what: str = "damaged and not used") -> None:
        """A bad checkpoint: move its manifest away, so that the step can be saved again.

        Raises NoSource if it is the other job's that this one was to begin from.
        """
        manifest = self.read(step)
        if manifest is None and step == self.source_step:
            raise NoSource(f"resume_from {self.spec.resume_from}: checkpoint {step} cannot be loaded: {why}")
        source = f"{self._prefix(step)}/manifest.json"
        self.fence.check()
        try:
            self.storage.move(source, f"{self._prefix(step)}/manifest.bad-{self.attempt}.json")
        except NotFound:
            return  # another worker found it out as well
        text = f"checkpoint {step} is {what}: {why}; the one before it is tried"
        self.emit(event("checkpoint.failed", text, {"step": step, "why": why}))
        if manifest is not None and "files" in manifest:
            self.emit(self._fact(manifest, "bad"))

    def _prefix(self, step: int) -> str:
        return _folder(self.root, step)


def _folder(root: str, step: int) -> str:
    return f"{root}/{step:010d}"


def state_digest(model: Json, digests: list[list[tuple[int, str]]]) -> str:
    """sha256 over parameters, buffers, update counts and optimizer state: per-block digests in block order,
    so that it does not depend on who owned what."""
    cursor = model["cursor"]
    whole = hashlib.sha256()
    whole.update(f"{model['params_digest']} {model['buffers_digest']}\n".encode())
    whole.update(json.dumps([cursor["step"], cursor["updates"], cursor["counts"]], sort_keys=True).encode())
    for block, digest in sorted((b, d) for part in digests for b, d in part):
        whole.update(f"{block}:{digest}\n".encode())
    return whole.hexdigest()

"""A running job's points to an MLflow server, from a thread of the driver: an append is its whole cost.

    take(fact) -> bounded memory -> a batch every two seconds -> the job's one run, whichever attempt this is

A server that is slow, away or wrong costs points, the oldest first, and never a step; the driver's end waits
for it for a moment only. `elastrain tensorboard` sends all of a job's points once more. No torch.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.reporting.mlflow_run import ENDS, URI, Metric, MlflowError, MlflowRun, metrics

if TYPE_CHECKING:
    from elastrain.trainers.coordination.attempt import Outcome
    from elastrain.trainers.reporting.claim import Claim

log = logging.getLogger(__name__)

KEPT = 10_000  # points that wait, a step each
EVERY_S = 2.0
AGAIN_S = 15.0  # after a try that failed
ANSWER_S = 10.0
CLOSE_S = 3.0


class Line(Protocol):
    def take(self, fact: Json) -> None: ...
    def close(self, outcome: Outcome) -> None: ...


class _NoLine:
    def take(self, fact: Json) -> None: ...
    def close(self, outcome: Outcome) -> None: ...


def open_line(job: str, granted: Claim, env: Mapping[str, str] = os.environ) -> Line:
    """One that does nothing where no tracking URI is set. The job's own variables, with what else they say of
    MLflow, win over env: those of Ray's nodes."""
    spec = granted.spec
    about = {"id": job, "name": spec["name"], "project": spec.get("project", "default"), "spec": spec}
    for source in ({**granted.env, **granted.secrets}, env):
        if source.get(URI):
            return MlflowLine(source[URI], about, source)
    return _NoLine()


class MlflowLine:
    """Of one attempt. Nothing here raises."""

    def __init__(self, uri: str, job: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._uri, self._job, self._env = uri, job, dict(env)
        self._waiting: deque[Json] = deque(maxlen=KEPT)
        self._batch: list[Metric] = []  # taken from there, and not acknowledged
        self._run: MlflowRun | None = None
        self._end: str | None = None
        self._dropped = 0
        self._told = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_on, name="mlflow", daemon=True)
        self._thread.start()

    def take(self, fact: Json) -> None:
        """Note a fact of the attempt, if it is a point. Returns at once."""
        if fact["kind"] == "metric" and self._thread.is_alive():
            self._dropped += len(self._waiting) == self._waiting.maxlen
            self._waiting.append(fact)

    def close(self, outcome: Outcome) -> None:
        """Send what is left, for a moment, and how the job ended, if it has."""
        self._end = ENDS[outcome.outcome] if is_last(outcome) else None
        self._closing.set()
        self._thread.join(CLOSE_S)
        if left := len(self._waiting) + len(self._batch) + self._dropped:
            log.warning("MLflow lacks %d or more of this job's values", left)

    def _send_on(self) -> None:
        closing, pause_s = False, 0.0
        while not closing:
            closing = self._closing.wait(pause_s)
            pause_s = EVERY_S
            try:
                self._send()
                if closing and self._end and self._run:
                    self._run.status(self._end)
            except MlflowError as error:
                self._trouble(str(error))
                pause_s = AGAIN_S
                if error.kind != "away" and self._run is None:
                    return  # whoever set the URI has to do something
            except Exception:
                log.exception("MLflow is told no more; the job goes on without")
                return
        if self._run is not None:
            self._run.close()

    def _send(self) -> None:
        if self._run is None:
            self._run = MlflowRun.of(self._uri, self._job, self._env, timeout_s=ANSWER_S)
            self._run.status("RUNNING")  # an attempt before this one may have said something else
            log.info("MLflow: run %s in experiment %r", self._run.id, self._run.experiment)
        while self._batch or self._waiting:
            while self._waiting and len(self._batch) < 500:
                self._batch += _point(self._waiting.popleft())
            try:
                self._run.log(self._batch)
            except MlflowError as error:
                if error.kind == "away":
                    raise
                self._trouble(f"{error}; {len(self._batch)} values are left out")
            self._batch = []

    def _trouble(self, text: str) -> None:
        """Say it once, and again when it changes."""
        if text != self._told:
            log.warning("%s The job goes on.", text)
        self._told = text


def is_last(outcome: Outcome) -> bool:
    """Whether the job is over with this attempt, as far as its driver can know. One that its user cancelled
    says no more; one that another attempt has overtaken says so."""
    if outcome.outcome == "cancelled":
        return outcome.message is None
    return outcome.outcome == "succeeded" or outcome.failed_by == "user"


def _point(fact: Json) -> list[Metric]:
    return metrics(fact["step"], datetime.fromisoformat(fact["at"]).timestamp(), fact["values"])

"""A job's points on their way to an MLflow server, from the command line."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elastrain.client.errors import ElastrainError, FixRequest, NotAllowed, Unreachable
from elastrain.trainers.reporting.mlflow_run import BATCH, ENDS, Metric, MlflowError, MlflowRun, metrics

KINDS: Mapping[str, type[ElastrainError]] = {"wrong": FixRequest, "denied": NotAllowed, "away": Unreachable}


class MlflowSink:
    """Points go out in batches. Raises the client's errors."""

    def __init__(self, uri: str, job: Mapping[str, Any], env: Mapping[str, str]) -> None:
        with _translated():
            self.run = MlflowRun.of(uri, job, env)
        self._waiting: list[Metric] = []

    def point(self, step: int, at: float, values: Mapping[str, Any]) -> None:
        self._waiting += metrics(step, at, values)
        if len(self._waiting) >= BATCH // 2:
            self._send()

    def back_to(self, step: int) -> None:
        self._send()

    def close(self, status: str) -> None:
        self._send()
        with _translated():
            if status in ENDS:
                self.run.status(ENDS[status])
            self.run.close()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        with _translated():
            self.run.log(waiting)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except MlflowError as error:
        raise KINDS[error.kind](str(error)) from error

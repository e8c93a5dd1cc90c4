"""A job as a run on an MLflow tracking server, over its REST API (2.0): mlflow itself need not be installed.

A job has one run, found again by its tag. What a job computes again is said again: MLflow keeps both values
of such a step, and shows the later one. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx

from elastrain.trainers.reporting.fact_buffer import finite
from elastrain.trainers.reporting.retrying import is_loopback

URI = "MLFLOW_TRACKING_URI"
TAG = "elastrain.job"
BATCH = 1000  # metrics that the server takes at once
MOST_PARAMS = 100
LONGEST_PARAM = 500
ENDS = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}

Metric = dict[str, Any]


class MlflowError(Exception):
    """kind: `wrong` is refused whoever asks and whenever, `denied` wants other credentials, `away` passes."""

    def __init__(self, kind: Literal["wrong", "denied", "away"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


class MlflowRun:
    """Every method raises MlflowError."""

    def __init__(self, http: httpx.Client, id: str, experiment: str) -> None:
        self._http = http
        self.id = id
        self.experiment = experiment

    @classmethod
    def of(
        cls, uri: str, job: Mapping[str, Any], env: Mapping[str, str], timeout_s: float = 30.0
    ) -> MlflowRun:
        """The job's run, made if need be. job: its id, name, project, spec. env: MLFLOW_EXPERIMENT_NAME
        (default: the project), and MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME and _PASSWORD."""
        if urlsplit(uri).scheme not in ("http", "https"):
            text = f"{URI}={uri!r} is not the address of a tracking server; give http(s)://host:port"
            raise MlflowError("wrong", text)
        token, user = env.get("MLFLOW_TRACKING_TOKEN"), env.get("MLFLOW_TRACKING_USERNAME")
        http = httpx.Client(
            base_url=f"{uri.rstrip('/')}/api/2.0/mlflow/",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=(user, env.get("MLFLOW_TRACKING_PASSWORD", "")) if user and not token else None,
            timeout=timeout_s,
            trust_env=not is_loopback(uri),
        )
        experiment = env.get("MLFLOW_EXPERIMENT_NAME") or str(job["project"])
        run = cls(http, "", experiment)
        try:
            number = run._experiment()
            run.id = run._found(number, job) or run._made(number, job)
        except MlflowError:
            run.close()
            raise
        return run

    def log(self, metrics: Sequence[Metric]) -> None:
        for first in range(0, len(metrics), BATCH):
            body = {"run_id": self.id, "metrics": metrics[first : first + BATCH]}
            self._ask("POST", "runs/log-batch", json=body)

    def status(self, status: str) -> None:
        """status: MLflow's own word, such as RUNNING."""
        self._ask("POST", "runs/update", json={"run_id": self.id, "status": status})

    def close(self) -> None:
        self._http.close()

    def _experiment(self) -> str:
        params = {"experiment_name": self.experiment}
        found = self._ask("GET", "experiments/get-by-name", params=params, missing=True)
        if found is None:
            made = self._ask("POST", "experiments/create", json={"name": self.experiment})
            return str(made["experiment_id"])
        return str(found["experiment"]["experiment_id"])

    def _found(self, experiment: str, job: Mapping[str, Any]) -> str | None:
        wanted = {"experiment_ids": [experiment], "filter": f"tags.`{TAG}` = '{job['id']}'", "max_results": 1}
        runs = self._ask("POST", "runs/search", json=wanted).get("runs") or []
        return str(runs[0]["info"]["run_id"]) if runs else None

    def _made(self, experiment: str, job: Mapping[str, Any]) -> str:
        name = f"{job['name']}-{job['id']}"
        tags = [{"key": TAG, "value": job["id"]}, {"key": "mlflow.runName", "value": name}]
        body = {"experiment_id": experiment, "run_name": name, "tags": tags}
        id = str(self._ask("POST", "runs/create", json=body)["run"]["info"]["run_id"])
        params = [{"key": key, "value": value} for key, value in flat(job["spec"])][:MOST_PARAMS]
        self._ask("POST", "runs/log-batch", json={"run_id": id, "params": params})
        return id

    def _ask(self, method: str, path: str, *, missing: bool = False, **request: Any) -> Any:
        """The answer; None for what does not exist, if that may be."""
        try:
            reply = self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            text = f"The MLflow server does not answer: {error or type(error).__name__}."
            raise MlflowError("away", text) from error
        if reply.status_code == 404 and missing:
            return None
        if reply.status_code >= 400:
            text = f"The MLflow server answered {reply.status_code} to {path}: {reply.text[:300]}"
            raise MlflowError(_kind(reply.status_code), text)
        try:
            return reply.json()
        except ValueError:
            raise MlflowError("wrong", f"What answers at {reply.url} is no MLflow server.") from None


def metrics(step: int, at: float, values: Mapping[str, Any]) -> list[Metric]:
    """What one step said, as MLflow takes it. at: seconds since the epoch."""
    timestamp = round(at * 1e3)
    return [
        {"key": name, "value": finite(value), "timestamp": timestamp, "step": step}
        for name, value in values.items()
    ]


def flat(spec: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The spec's fields as a.b.c and text; unset ones are left out."""
    found: list[tuple[str, str]] = []
    for name, value in spec.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{name}.")
        elif value not in (None, "", [], {}):
            found.append((f"{prefix}{name}", str(value)[:LONGEST_PARAM]))
    return found


def _kind(status: int) -> Literal["wrong", "denied", "away"]:
    if status in (401, 403):
        return "denied"
    return "away" if status >= 500 or status in (408, 425, 429) else "wrong"

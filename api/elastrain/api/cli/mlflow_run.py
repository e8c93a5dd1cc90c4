"""A job as a run on an MLflow tracking server, over its REST API (2.0): mlflow itself need not be installed.

A job has one run, found again by its tag. What a job computes again is said again: MLflow keeps both values
of such a step, and shows the later one.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from elastrain.client.errors import ElastrainError, FixRequest, NotAllowed, Unreachable
from elastrain.client.home import loopback

TAG = "elastrain.job"
BATCH = 1000  # metrics that the server takes at once
MOST_PARAMS = 100
LONGEST_PARAM = 500
ENDS = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


class MlflowRun:
    """Points go out in batches. Raises the client's errors."""

    def __init__(self, http: httpx.Client, id: str, experiment: str) -> None:
        self._http = http
        self.id = id
        self.experiment = experiment
        self._waiting: list[dict[str, Any]] = []

    @classmethod
    def of(cls, uri: str, job: Mapping[str, Any], env: Mapping[str, str]) -> "MlflowRun":
        """The job's run, made if need be. env: MLFLOW_EXPERIMENT_NAME (default: the project), and
        MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME and _PASSWORD."""
        if urlsplit(uri).scheme not in ("http", "https"):
            raise FixRequest(
                f"MLFLOW_TRACKING_URI={uri!r} is not the address of a tracking server; give http(s)://host:port"
            )
        token, user = env.get("MLFLOW_TRACKING_TOKEN"), env.get("MLFLOW_TRACKING_USERNAME")
        http = httpx.Client(
            base_url=f"{uri.rstrip('/')}/api/2.0/mlflow/",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            auth=(user, env.get("MLFLOW_TRACKING_PASSWORD", "")) if user and not token else None,
            timeout=30.0,
            trust_env=not loopback(uri),
        )
        experiment = env.get("MLFLOW_EXPERIMENT_NAME") or str(job["project"])
        run = cls(http, "", experiment)
        number = run._experiment()
        run.id = run._found(number, job) or run._made(number, job)
        return run

    def point(self, step: int, at: float, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._waiting.append({"key": name, "value": value, "timestamp": round(at * 1e3), "step": step})
        if len(self._waiting) >= BATCH // 2:
            self._send()

    def back_to(self, step: int) -> None:
        self._send()

    def close(self, status: str) -> None:
        self._send()
        if status in ENDS:
            self._ask("POST", "runs/update", json={"run_id": self.id, "status": ENDS[status]})
        self._http.close()

    def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            self._ask("POST", "runs/log-batch", json={"run_id": self.id, "metrics": batch})

    def _experiment(self) -> str:
        params = {"experiment_name": self.experiment}
        found = self._ask("GET", "experiments/get-by-name", params=params, missing=True)
        if found is None:
            return str(
                self._ask("POST", "experiments/create", json={"name": self.experiment})["experiment_id"]
            )
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
            raise Unreachable(
                f"The MLflow server does not answer: {error or type(error).__name__}."
            ) from error
        if reply.status_code == 404 and missing:
            return None
        if reply.status_code >= 400:
            kind: type[ElastrainError] = NotAllowed if reply.status_code in (401, 403) else FixRequest
            kind = Unreachable if reply.status_code >= 500 else kind
            raise kind(f"The MLflow server answered {reply.status_code} to {path}: {reply.text[:300]}")
        return reply.json()


def flat(spec: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The spec's fields as a.b.c and text; unset ones are left out."""
    found: list[tuple[str, str]] = []
    for name, value in spec.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{name}.")
        elif value not in (None, "", [], {}):
            found.append((f"{prefix}{name}", str(value)[:LONGEST_PARAM]))
    return found

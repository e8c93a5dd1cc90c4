"""Ray's Jobs and State API over HTTP, as far as the service needs it. Needs no Ray on this side.

Every call raises RayUnreachable if there is no answer to rely on: nothing may be concluded from that.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast
from urllib.parse import urlsplit

import httpx

from elastrain.service.casts import clean

TIMEOUT = httpx.Timeout(10.0, connect=2.0)
# Ray answers a submit once the supervisor is being created, which takes its time on a busy head
SUBMIT_TIMEOUT = httpx.Timeout(60.0, connect=2.0)

JobState = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
ENDED: frozenset[str] = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})


class RayUnreachable(RuntimeError):
    """No answer, or none that can be relied on; ask again later. The message names no address."""


class RayRefused(RuntimeError):
    """Ray answered, and did not do it. What else it says can be relied on."""


class AlreadySubmitted(RuntimeError):
    """Ray says that it has a job of this id. Whether it really does shows when it is read back."""


@dataclass(frozen=True)
class RayJob:
    submission_id: str
    status: JobState
    message: str


@dataclass(frozen=True)
class RayNode:
    id: str
    alive: bool
    resources: dict[str, float]
    used: dict[str, float]
    labels: dict[str, str] = field(default_factory=dict)

    def view(self) -> dict[str, Any]:
        """As the API shows it."""
        shown = {"id": self.id, "alive": self.alive, "resources": self.resources, "used": self.used}
        return {**shown, "labels": self.labels}


@dataclass(frozen=True)
class Launch:
    """A driver for Ray to start."""

    submission_id: str
    entrypoint: str
    env: Mapping[str, str] = field(default_factory=dict)
    takes: Mapping[str, float] = field(default_factory=dict)  # of its node, in Ray's names: CPU, memory
    metadata: Mapping[str, str] = field(default_factory=dict)  # what people find on the job's page


class Ray(Protocol):
    """What the service asks of Ray; the fake in the tests is its second implementation."""

    def version(self) -> str: ...
    def session(self) -> str: ...  # another one after a head came back without what the old one knew
    def jobs(self) -> list[RayJob]: ...
    def job(self, submission_id: str) -> RayJob | None: ...
    def submit(self, launch: Launch) -> None: ...  # raises AlreadySubmitted, RayRefused
    def stop(self, submission_id: str) -> None: ...  # no error if there is no such job
    def logs(self, submission_id: str) -> str: ...  # what the driver printed; empty if that is gone
    def nodes(self) -> list[RayNode]: ...


class RayJobs:
    """Thread-safe. address: of Ray's dashboard. The token is Ray's own (see `ray_token`)."""

    def __init__(self, address: str, certificates: str | None = None) -> None:
        """certificates: in PEM, those to trust; None: as this machine does."""
        local = (urlsplit(address).hostname or "") in ("localhost", "127.0.0.1", "::1")
        self._http = httpx.Client(
            base_url=address,
            timeout=TIMEOUT,
            trust_env=not local,  # a proxy has no business between this machine and itself
            verify=ssl.create_default_context(cadata=certificates) if certificates else True,
        )

    def close(self) -> None:
        self._http.close()

    def version(self) -> str:
        with understood():
            return str(self._get("/api/version")["ray_version"])

    def session(self) -> str:
        """Ray's session: kept by a head that restarts with what the old one knew, as its jobs are."""
        with understood():
            return str(self._get("/api/version")["session_name"])

    def jobs(self) -> list[RayJob]:
        with understood():
            return [_job(item) for item in self._get("/api/jobs/") if item.get("submission_id")]

    def job(self, submission_id: str) -> RayJob | None:
        reply = self._ask("GET", f"/api/jobs/{submission_id}")
        with understood():
            return None if reply.status_code == 404 else _job(_json(reply))

    def submit(self, launch: Launch) -> None:
        """Ray is told nothing but what `launch` says: whoever can call its API can read all of it."""
        body: dict[str, Any] = {
            "submission_id": launch.submission_id,
            "entrypoint": launch.entrypoint,
            "runtime_env": {"env_vars": dict(launch.env)},
            "metadata": dict(launch.metadata),
        }
        if cpus := launch.takes.get("CPU"):
            body["entrypoint_num_cpus"] = cpus
        if memory := launch.takes.get("memory"):
            body["entrypoint_memory"] = int(memory)
        reply = self._ask("POST", "/api/jobs/", json=body, timeout=SUBMIT_TIMEOUT)
        if reply.status_code >= 400:
            if "already exists" in reply.text:
                raise AlreadySubmitted(launch.submission_id)
            raise RayRefused(f"Ray did not take the driver ({reply.status_code}): {_last_line(reply.text)}")

    def stop(self, submission_id: str) -> None:
        reply = self._ask("POST", f"/api/jobs/{submission_id}/stop")
        if reply.status_code >= 400 and reply.status_code != 404:
            raise RayRefused(f"Ray did not stop a driver ({reply.status_code}): {_last_line(reply.text)}")

    def logs(self, submission_id: str) -> str:
        reply = self._ask("GET", f"/api/jobs/{submission_id}/logs")
        with understood():
            return "" if reply.status_code in (400, 404) else str(_json(reply).get("logs") or "")

    def nodes(self) -> list[RayNode]:
        with understood():
            found = self._get("/api/v0/nodes?detail=1&limit=10000")["data"]["result"]["result"]
            used = self._used()
            return [_node(node, used.get(str(node["node_id"]), {})) for node in found]

    def _used(self) -> dict[str, dict[str, Any]]:
        """{node: {resource: [in use, total]}}, as the autoscaler last wrote it; empty until it has."""
        status = self._get("/api/cluster_status").get("data", {}).get("clusterStatus") or {}
        usage: dict[str, dict[str, Any]] = (status.get("loadMetricsReport") or {}).get("usageByNode") or {}
        return usage

    def _get(self, path: str) -> Any:
        return _json(self._ask("GET", path))

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        token = ray_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            reply = self._http.request(method, path, headers=headers, **options)
        except httpx.HTTPError as error:
            raise RayUnreachable(
                f"{_kind(error)} ({_last_line(str(error)) or 'no more is known'})"
            ) from error
        if reply.status_code in (401, 403):
            raise RayUnreachable("Ray refused our token; set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH")
        return reply


def ray_token(env: Mapping[str, str] | None = None) -> str | None:
    """Ray's own token, from where Ray itself looks for it; read each time, since it may be rotated."""
    env = os.environ if env is None else env
    if token := env.get("RAY_AUTH_TOKEN", "").strip():
        return token
    path = Path(env.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


@contextmanager
def understood() -> Iterator[None]:
    """Whatever else answers at that address, or another version of Ray, is no answer to rely on."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RayUnreachable("what answered is not Ray's dashboard, or one of another version") from error


def _json(reply: httpx.Response) -> Any:
    if reply.status_code >= 400:
        raise RayUnreachable(f"Ray answered {reply.status_code}: {_last_line(reply.text)}")
    return reply.json()


def _job(item: Mapping[str, Any]) -> RayJob:
    said = clean(item.get("message") or "")  # it quotes the driver's log, where there may be anything
    return RayJob(str(item["submission_id"]), cast(JobState, item["status"]), said)


def _node(item: Mapping[str, Any], usage: Mapping[str, Any]) -> RayNode:
    resources = _amounts(item.get("resources_total"))
    used = {name: usage.get(name, usage.get(_camel(name))) for name in resources}
    return RayNode(
        id=str(item["node_id"]),
        alive=item["state"] == "ALIVE",
        resources=resources,
        used={name: float(pair[0]) for name, pair in used.items() if pair is not None},
        labels={str(name): str(value) for name, value in (item.get("labels") or {}).items()},
    )


def _camel(name: str) -> str:
    """The dashboard writes object_store_memory as objectStoreMemory in this one answer."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _amounts(resources: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: float(amount) for name, amount in (resources or {}).items() if _plain(name)}


def _plain(name: str) -> bool:
    """Ray also lists each node's address and its placement groups as resources."""
    return not name.startswith("node:") and "_group_" not in name


def _kind(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.ConnectError):
        return "the connection was refused"
    return (
        "it did not answer in time" if isinstance(error, httpx.TimeoutException) else "the connection broke"
    )


def _last_line(text: str) -> str:
    lines = clean(text).strip().splitlines()
    return lines[-1][:300] if lines else ""

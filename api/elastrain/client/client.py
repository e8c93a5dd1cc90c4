"""The entry to a service: submit, find and list jobs, look at the cluster."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from elastrain.client import spec_file
from elastrain.client.errors import NotFound
from elastrain.client.home import discover
from elastrain.client.http import Http
from elastrain.client.jobs import Job
from elastrain.client.package import Package, pack

JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class Client:
    """Talks to one service: the one given, that of ELASTRAIN_URL and ELASTRAIN_TOKEN, or the local one.

    Every call raises ElastrainError's children only (see errors.py).
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        warn: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.warn = warn
        self.http = Http(discover(url, token), transport)

    def submit(
        self,
        spec: str | Path | Mapping[str, Any],
        working_dir: str | Path | None = None,
        overrides: Iterable[str] = (),
    ) -> Job:
        """Submits a spec (a YAML file or a mapping), with `overrides` such as `optimizer.lr=0.01`.

        The code in `working_dir` is uploaded unless the service has it already.
        """
        body = self.prepare(spec, working_dir, overrides)
        return Job(self.http, self.http.json("POST", "/v1/jobs", json=body))

    def dry_run(
        self,
        spec: str | Path | Mapping[str, Any],
        working_dir: str | Path | None = None,
        overrides: Iterable[str] = (),
    ) -> dict[str, Any]:
        """What a submit would do: the completed spec, whether it can be scheduled, warnings."""
        body = self.prepare(spec, working_dir, overrides)
        answer: dict[str, Any] = self.http.json("POST", "/v1/jobs", json=body, params={"dry_run": "true"})
        return answer

    def prepare(
        self, spec: str | Path | Mapping[str, Any], working_dir: str | Path | None, overrides: Iterable[str]
    ) -> dict[str, Any]:
        """The spec as it will be sent, its code uploaded."""
        body = spec_file.override(spec_file.read(spec), overrides)
        spec_file.sendable(body)
        if working_dir is not None:
            with pack(Path(working_dir)) as package:
                if warning := package.warning():
                    self.warn(warning)
                self.upload(package, str(body.get("project") or "default"))
                body["code"] = package.sha256
        return body

    def upload(self, package: Package, project: str) -> bool:
        """Sends a package unless the project has it; returns whether it was sent."""
        path, params = f"/v1/packages/{package.sha256}", {"project": project}
        try:
            self.http.send("HEAD", path, params=params)
            return False
        except NotFound:
            pass
        headers = {"Content-Type": "application/zip", "Content-Length": str(package.size)}
        self.http.send("PUT", path, params=params, headers=headers, body=package.chunks)
        return True

    def job(self, job_id: str, within_s: float | None = None) -> Job:
        """A job by its id or an unambiguous beginning of it. within_s: how long to try. Raises NotFound."""
        if not JOB_ID.fullmatch(job_id):  # as a part of a path it would name something else
            raise NotFound(f"There is no job {job_id!r}: that is no job's id.")
        return Job(self.http, self.http.json("GET", f"/v1/jobs/{job_id}", within_s=within_s))

    def jobs(
        self,
        *,
        status: str | None = None,
        project: str | None = None,
        label: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Jobs, newest first; all of them, page after page, or at most `limit`."""
        wished = {"status": status, "project": project, "label": label}
        params: dict[str, Any] = {name: value for name, value in wished.items() if value is not None}
        left = limit
        while left is None or left > 0:
            params["limit"] = min(left or 100, 100)
            page = self.http.json("GET", "/v1/jobs", params=params)
            yield from (Job(self.http, item) for item in page["items"])
            left = None if left is None else left - len(page["items"])
            params["cursor"] = page["next_cursor"]
            if not params["cursor"]:
                return

    def cancel(
        self,
        *,
        status: str | None = None,
        project: str | None = None,
        label: str | None = None,
        dry_run: bool = False,
    ) -> list[dict[str, Any]]:
        """Cancels all jobs that the filter finds; what became of each: `id, name, status, done, detail`."""
        wished = {"status": status, "project": project, "label": label}
        params: dict[str, Any] = {name: value for name, value in wished.items() if value is not None}
        answer = self.http.json("POST", "/v1/jobs/cancel", params={**params, "dry_run": dry_run})
        items: list[dict[str, Any]] = answer["items"]
        return items

    def cluster(self) -> dict[str, Any]:
        """The nodes, what they have and what is in use."""
        found: dict[str, Any] = self.http.json("GET", "/v1/cluster")
        return found

    def queue(self) -> list[dict[str, Any]]:
        """The jobs that wait, first first."""
        items: list[dict[str, Any]] = self.http.json("GET", "/v1/queue")["items"]
        return items

    def projects(self) -> list[dict[str, Any]]:
        """The projects with their quotas and weights."""
        items: list[dict[str, Any]] = self.http.json("GET", "/v1/projects")["items"]
        return items

    def create_project(self, name: str, **values: Any) -> dict[str, Any]:
        """values: quota {workers, gpus}, weight. Raises Conflict, NotAllowed."""
        made: dict[str, Any] = self.http.json("POST", "/v1/projects", json={"name": name, **values})
        return made

    def change_project(self, name: str, **changes: Any) -> dict[str, Any]:
        """changes: as in `create_project`; what is left out stays. Raises NotFound, NotAllowed."""
        made: dict[str, Any] = self.http.json("PATCH", f"/v1/projects/{quote(name, safe='')}", json=changes)
        return made

    def usage(self) -> list[dict[str, Any]]:
        """What each project's jobs hold now and wait for."""
        items: list[dict[str, Any]] = self.http.json("GET", "/v1/usage")["items"]
        return items

    def version(self) -> dict[str, str]:
        found: dict[str, str] = self.http.json("GET", "/v1/version")
        return found

    def ready(self) -> dict[str, Any]:
        """`{ready, checks: {name: {ok, detail, age_s}}}`: whether jobs can run, and if not, why."""
        found: dict[str, Any] = self.http.json("GET", "/readyz", also=(503,))
        return found

    def me(self) -> dict[str, Any]:
        """Whose token this is."""
        found: dict[str, Any] = self.http.json("GET", "/v1/me")
        return found

    def close(self) -> None:
        self.http.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

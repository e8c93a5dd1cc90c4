"""Is the cluster what this version expects? Asked once of each cluster, by a tiny Ray Job, before anybody
finds out by a job that fails.

    not known -> a Ray Job looks (trainers/launching/cluster_check.py) -> its line is read -> written down

Nothing waits for it: a job that could run does so meanwhile. What it found is named by `readyz`, `cluster`
and `elastrain doctor`.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from elastrain.service import points
from elastrain.service.certificates import for_drivers
from elastrain.service.clock import Clock
from elastrain.service.look import Look, Looker
from elastrain.service.pace import Pace, Troubles
from elastrain.service.ray_jobs import ENDED, AlreadySubmitted, Launch, Ray, RayRefused, RayUnreachable
from elastrain.service.settings import Settings
from elastrain.service.store import Store, installation
from elastrain.trainers.launching import receipt_line

Json = dict[str, Any]
FACT = "cluster_check"
# Ray's versions that this one of elastrain is made for begin so
RAY = "2.60."
LOOK_EVERY_S = 2.0
SAID = 300  # characters of what a check that failed has printed


class ClusterCheck:
    """One thread calls `round`. Remembers only for which cluster it is done."""

    def __init__(
        self, store: Store, ray: Ray, looker: Looker, settings: Settings, clock: Clock, troubles: Troubles
    ) -> None:
        self._store, self._ray, self._looker = store, ray, looker
        self._settings, self._clock, self._troubles = settings, clock, troubles
        self._pace = Pace(clock, LOOK_EVERY_S)
        self._done = ""

    def round(self, look: Look) -> None:
        """The next step, if there is one. Ray may be away."""
        about = f"{look.cluster} {version('elastrain')} {self._settings.driver_url}"
        mark = hashlib.sha256(about.encode()).hexdigest()[:12]
        if look.error is not None or self._done == mark or not self._pace.due(mark):
            return
        with self._store.read() as tx:
            known = installation.read(tx, FACT)
        if known is not None and known[1]["mark"] == mark:
            self._done = mark
            return
        try:
            self._step(mark)
            self._troubles.over("the check of the cluster")
        except RayUnreachable as error:
            look.error = look.error or str(error)
        except RayRefused as error:
            self._troubles.begin("the check of the cluster", str(error))

    def _step(self, mark: str) -> None:
        id = f"{self._looker.installation}-check-{mark}"
        job = self._ray.job(id)
        if job is None:
            self._submit(id)
            points.reach("the check is asked for")
        elif job.status in ENDED:
            said = self._ray.logs(id)
            self._note(mark, receipt_line.find(said, receipt_line.CLUSTER), job.message or said)

    def _submit(self, id: str) -> None:
        settings = self._settings
        place = {"url": settings.storage_url, "options": settings.storage_options}
        env = {
            "ELASTRAIN_DRIVER_URL": settings.driver_url,
            "ELASTRAIN_CHECK_STORAGE": json.dumps(place),
            "ELASTRAIN_CERTIFICATES": for_drivers(settings.ca_bundle, settings.driver_url),
        }
        entrypoint = f"{settings.driver_python} -m elastrain.trainers.launching.cluster_check"
        try:
            self._ray.submit(Launch(id, entrypoint, env))
        except AlreadySubmitted:
            pass  # by a process before this one

    def _note(self, mark: str, found: Any, said: str) -> None:
        sound = isinstance(found, dict)
        differ = differences(found, ours()) if sound else []
        value: Json = {"mark": mark, "found": found if sound else None, "differences": differ}
        value["detail"] = None if sound else f"the check itself failed: {said.strip()[-SAID:] or 'no output'}"
        with self._store.write() as tx:
            installation.write(tx, FACT, value, self._clock.now())
        points.reach("the check is noted")
        self._done = mark
        if told := [*differ, *([value["detail"]] if value["detail"] else [])]:
            self._troubles.begin("the cluster", "; ".join(told))


def ours() -> dict[str, str]:
    """What this process runs with, as far as the cluster must be like it."""
    return {"python": platform.python_version(), "elastrain": version("elastrain")}


def differences(found: Mapping[str, Any], here: Mapping[str, str]) -> list[str]:
    """In what the cluster is not as it should be, in a sentence each, without addresses."""
    told = []
    if _minor(found.get("python")) != _minor(here["python"]):
        told.append(f"Python is {found.get('python')} on the cluster and {here['python']} here")
    if found.get("elastrain") != here["elastrain"]:
        there = _named(found.get("elastrain"))
        told.append(f"elastrain is {there} on the cluster and {here['elastrain']} here")
    if not str(found.get("ray")).startswith(RAY):
        told.append(f"Ray is {_named(found.get('ray'))} on the cluster, and this version is made for {RAY}x")
    if found.get("torch") is None:
        told.append("torch is not installed on the cluster, where workers need it")
    if why := found.get("storage"):
        told.append(f"the object storage takes nothing from the cluster ({why})")
    if why := found.get("service"):
        told.append(f"the service is not reached from the cluster at ELASTRAIN_DRIVER_URL ({why})")
    return told


def _minor(text: Any) -> list[str]:
    return str(text).split(".")[:2]


def _named(text: Any) -> str:
    return "not installed" if text is None else str(text)

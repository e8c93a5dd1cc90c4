"""The settings of the service, read once from ELASTRAIN_* environment variables.

A setting that only matters to one part lives with that part; here is what an operator sets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from elastrain.service.scheduling.ceiling import Shape, parse_ceiling

PREFIX = "ELASTRAIN_"


class SettingsError(ValueError):
    """A setting is missing or wrong; the message names the variable, its value and the remedy."""


@dataclass(frozen=True)
class Settings:
    """Where everything is, and how long the service waits for it."""

    home: Path
    """Folder for what this installation keeps on this machine (HOME)."""
    database_url: str
    """SQLAlchemy URL of the store (DATABASE_URL); SQLite in HOME unless given."""
    storage_url: str
    """Object storage, file:///... or s3://bucket/prefix (STORAGE_URL); a folder in HOME unless given."""
    ray_address: str
    """Address of Ray's dashboard, http://host:port (RAY_ADDRESS)."""
    dashboard_url: str
    """Where people find Ray's dashboard, for links (RAY_DASHBOARD_URL); RAY_ADDRESS unless given."""
    driver_url: str
    """The address under which drivers reach this service (DRIVER_URL)."""
    storage_options: dict[str, str] = field(default_factory=dict)
    """Options of the object store, such as its endpoint (S3_ENDPOINT)."""
    ca_bundle: str | None = None
    """File with the certificates to trust, in PEM, also given to drivers for DRIVER_URL (CA_BUNDLE)."""
    driver_python: str = "python"
    """The Python that runs the driver on the cluster (DRIVER_PYTHON)."""
    driver_cpu: float = 0.0
    """CPUs that Ray sets aside for a driver (DRIVER_CPU); 0 keeps it on the head node."""
    driver_memory: float = 0.0
    """Bytes of memory that Ray sets aside for a driver (DRIVER_MEMORY); with 0 and no CPUs it stays there."""
    cancel_grace_s: float = 30.0
    """How long a driver may take to end by itself before Ray is asked to stop it (CANCEL_GRACE_S)."""
    pause_grace_s: float = 900.0
    """The same for a pause or a preemption, in which it saves a checkpoint (PAUSE_GRACE_S)."""
    claim_timeout_s: float = 180.0
    """How long a submitted driver may take until its first call (CLAIM_TIMEOUT_S)."""
    capacity_max: tuple[Shape, ...] = ()
    """What Ray's autoscaler could add: node shapes and how many of each at most, as JSON (CAPACITY_MAX)."""
    package_max_bytes: int = 256 * 1024 * 1024
    """Largest code package (PACKAGE_MAX_BYTES)."""

    keep_ended_days: float = 0.0
    """Jobs that ended so many days ago are deleted, unless pinned (KEEP_ENDED_DAYS); 0 keeps all for ever."""

    @property
    def driver(self) -> dict[str, float]:
        """What a driver takes of its node, in Ray's names."""
        wants = {"CPU": self.driver_cpu, "memory": self.driver_memory}
        return {name: amount for name, amount in wants.items() if amount > 0}

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Settings:
        """Read the environment. Raises SettingsError naming the first variable that is wrong."""
        read = _Reader(os.environ if env is None else env)
        home = Path(read.text("HOME") or Path.home() / ".elastrain").expanduser().absolute()
        url = read.text("URL") or "http://127.0.0.1:8470"
        ray_address = read.url("RAY_ADDRESS", "http://127.0.0.1:8265")
        endpoint = read.text("S3_ENDPOINT")
        return cls(
            home=home,
            database_url=read.text("DATABASE_URL") or f"sqlite:///{home / 'elastrain.db'}",
            storage_url=read.text("STORAGE_URL") or (home / "objects").as_uri(),
            ray_address=ray_address,
            dashboard_url=read.url("RAY_DASHBOARD_URL", ray_address),
            driver_url=read.url("DRIVER_URL", url),
            storage_options={"endpoint": endpoint} if endpoint else {},
            ca_bundle=read.text("CA_BUNDLE"),
            driver_python=read.text("DRIVER_PYTHON") or "python",
            driver_cpu=read.number("DRIVER_CPU", 0.0),
            driver_memory=read.number("DRIVER_MEMORY", 0.0),
            cancel_grace_s=read.number("CANCEL_GRACE_S", 30.0),
            pause_grace_s=read.number("PAUSE_GRACE_S", 900.0),
            claim_timeout_s=read.number("CLAIM_TIMEOUT_S", 180.0),
            keep_ended_days=read.number("KEEP_ENDED_DAYS", 0.0),
            capacity_max=read.ceiling("CAPACITY_MAX"),
            package_max_bytes=int(read.number("PACKAGE_MAX_BYTES", 256 * 1024 * 1024)),
        )


class _Reader:
    """Typed access to the variables with our prefix; an empty one counts as not set."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str) -> str | None:
        return self._env.get(PREFIX + name, "").strip() or None

    def url(self, name: str, default: str) -> str:
        value = self.text(name) or default
        if urlsplit(value).scheme not in ("http", "https") or not urlsplit(value).hostname:
            raise SettingsError(f"{PREFIX}{name}={value!r} is not an http(s) address; give http://host:port")
        return value.rstrip("/")

    def number(self, name: str, default: float) -> float:
        value = self.text(name)
        try:
            number = default if value is None else float(value)
        except ValueError:
            raise SettingsError(f"{PREFIX}{name}={value!r} is not a number") from None
        if not 0 <= number < float("inf"):
            raise SettingsError(f"{PREFIX}{name}={value!r} is out of range; give a number of at least 0")
        return number

    def ceiling(self, name: str) -> tuple[Shape, ...]:
        value = self.text(name)
        try:
            return () if value is None else parse_ceiling(value)
        except ValueError as error:
            raise SettingsError(f"{PREFIX}{name}={value!r} {error}") from None

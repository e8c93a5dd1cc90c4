"""Keys for a bucket that may change while a job runs: AWS's shared credentials file, read anew when it does.

Whoever rotates keys writes the file (a mounted Kubernetes secret, `aws configure`, a sidecar); the next
request uses the new ones, in the service, in drivers and in workers alike. Identities that a cloud gives to
its nodes and pods are refreshed by the store's client, and need none of this.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class CredentialsFile:
    """A provider for obstore: called for every request, it costs a stat."""

    def __init__(self, path: Path, profile: str) -> None:
        self.path, self.profile = path, profile
        self._read_at: tuple[int, int] | None = None  # (mtime in ns, inode) of what was read
        self._keys: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        """The keys as they are now. Raises OSError or ValueError, naming the file."""
        seen = self.path.stat()
        if (seen.st_mtime_ns, seen.st_ino) != self._read_at:
            self._keys = self._read()
            self._read_at = (seen.st_mtime_ns, seen.st_ino)
        return {**self._keys, "expires_at": datetime.now(UTC)}  # ask again next time

    def _read(self) -> dict[str, Any]:
        file = configparser.ConfigParser(interpolation=None)
        file.read(self.path, encoding="utf-8")
        if not file.has_option(self.profile, "aws_access_key_id"):
            raise ValueError(f"{self.path} has no aws_access_key_id in [{self.profile}]")
        section = file[self.profile]
        return {
            "access_key_id": section["aws_access_key_id"],
            "secret_access_key": section.get("aws_secret_access_key", ""),
            "token": section.get("aws_session_token"),
        }


def credentials_file(options: Mapping[str, str], env: Mapping[str, str]) -> CredentialsFile | None:
    """The file that AWS's own tools would read; None where keys are given otherwise, or there is none."""
    given = "access_key_id" in options or "aws_access_key_id" in options or "AWS_ACCESS_KEY_ID" in env
    named = env.get("AWS_SHARED_CREDENTIALS_FILE")
    path = Path(named or "~/.aws/credentials").expanduser()
    if given or not path.exists():
        return None
    return CredentialsFile(path, env.get("AWS_PROFILE", "default"))


def key_id(options: Mapping[str, str], env: Mapping[str, str] = os.environ) -> str | None:
    """The id of the key in use now, for messages; never the secret."""
    given = options.get("access_key_id") or options.get("aws_access_key_id") or env.get("AWS_ACCESS_KEY_ID")
    if given:
        return given
    try:
        file = credentials_file(options, env)
        return None if file is None else str(file()["access_key_id"])
    except (OSError, ValueError):
        return None

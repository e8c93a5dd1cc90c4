"""Downloading a checkpoint's files: streamed, tried again, checked against their sha256."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastrain.client.errors import ServiceBroken, Unreachable
from elastrain.client.http import Http

TRIES = 3


def download(http: Http, path: str, file: Mapping[str, Any], target: Path) -> Path:
    """Fetches one file of a checkpoint to `target`, which is there whole or not at all.

    Raises ServiceBroken if its bytes are not what the manifest says, Unreachable if the line keeps breaking.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        for left in reversed(range(TRIES)):
            try:
                digest = _fetch(http, path, draft)
                break
            except Unreachable:
                if not left:
                    raise
        if file.get("sha256") and digest != file["sha256"]:
            raise ServiceBroken(
                f"{target.name} arrived with sha256 {digest}, its manifest says {file['sha256']}: "
                "the file in object storage is damaged; take another checkpoint (`elastrain checkpoints`)."
            )
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _fetch(http: Http, path: str, draft: Path) -> str:
    """One try; returns the sha256 of what came."""
    digest = hashlib.sha256()
    with http.stream(path) as response, draft.open("wb") as out:
        for chunk in response.iter_bytes(2**20):
            digest.update(chunk)
            out.write(chunk)
    return digest.hexdigest()

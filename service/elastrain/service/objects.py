"""Files of jobs in object storage, read for users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from elastrain.service.errors import NotFound, Unavailable
from elastrain.trainers import storage as trainers_storage
from elastrain.trainers.storage import Storage, StorageError

Json = dict[str, Any]
# in every checkpoint beside its parts, see the contract's layout
ALWAYS = ("manifest.json", "model.safetensors")


class Objects:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def checkpoint_file(self, job: str, checkpoint: Json, file: str) -> tuple[int, Iterator[bytes]]:
        """(bytes, contents). Only files that the checkpoint lists; raises NotFound, Unavailable."""
        listed = [str(item["name"]) for item in checkpoint["files"]]
        if file not in (*listed, *ALWAYS):
            names = ", ".join(sorted({*listed, *ALWAYS}))
            raise NotFound(
                f"Checkpoint {checkpoint['step']} of {job} has no file {file[:80]!r}; it has: {names}"
            )
        key = f"jobs/{job}/checkpoints/{checkpoint['step']:010d}/{file}"
        try:
            return self._storage.size(key), self._storage.stream(key)
        except trainers_storage.NotFound:
            raise NotFound(f"{file} of checkpoint {checkpoint['step']} is no longer in storage") from None
        except StorageError as error:
            raise Unavailable(f"The object storage did not give {file}: {error}") from error

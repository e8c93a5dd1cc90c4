"""What each worker gets, and what that is in Ray's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from elastrain.trainers.spec.fields import Cores, Count, LabelKey, LabelValue, Number, Section

_MEMORY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([kMGT]|[KMGT]i)?")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGT", start=1)}
MOST_BYTES = 2**50
# Ray counts in units of 1/10000
LEAST, MOST = 0.0001, 10**9
# each is looked at on each node, many times in a round of the scheduler
MOST_CUSTOM = 16
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,62}")
_RAYS = ("cpu", "gpu", "memory", "object_store_memory")


def in_bytes(memory: int | str) -> int:
    """8Gi -> 8589934592. Raises ValueError."""
    found = _MEMORY.fullmatch(str(memory))
    size = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    if not 1 <= size <= MOST_BYTES:
        raise ValueError("must be bytes, or a number with k, M, G, T, Ki, Mi, Gi or Ti, such as 8Gi")
    return size


def worker_takes(resources: Mapping[str, Any]) -> dict[str, float]:
    """{"CPU": 1.0, "GPU": 0.0, ...}: what a worker takes of its node, in Ray's names.

    resources: this section of a spec, as JSON.
    """
    found = {"CPU": float(resources["cpu"]), "GPU": float(resources["gpu"])}
    if memory := resources.get("memory"):
        found["memory"] = float(in_bytes(memory))
    return {**found, **{name: float(amount) for name, amount in (resources.get("custom") or {}).items()}}


def _memory(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be bytes, or text such as 8Gi")
    in_bytes(value)
    return value


def _custom(value: dict[str, float]) -> dict[str, float]:
    for name in value:
        if not _NAME.fullmatch(name) or name.lower() in _RAYS:
            raise ValueError(
                f"{name[:70]!r} cannot be a custom resource: must be 1 to 63 letters, digits, '_', '.', '/' "
                f"and '-', and none of {', '.join(_RAYS)}"
            )
    if len(value) > MOST_CUSTOM:
        raise ValueError(f"must have at most {MOST_CUSTOM} names")
    return value


Memory = Annotated[int | str, BeforeValidator(_memory)]
Share = Annotated[Number, Field(ge=LEAST, le=MOST)]


class Resources(Section):
    """What each worker gets."""

    cpu: Cores = Field(
        default=1.0, description="CPU cores; also the number of threads, rounded down, at least 1."
    )
    gpu: Count = Field(default=0, description="GPUs; 1 picks CUDA and NCCL.")
    memory: Memory | None = Field(
        default=None,
        description="Memory that its node must have left, in bytes or as in 8Gi; it is no limit.",
    )
    accelerator: str | None = Field(default=None, description="Kind of accelerator.")
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, description="Node labels to match.")
    custom: Annotated[dict[str, Share], AfterValidator(_custom)] = Field(
        default_factory=dict, description="Custom Ray resources, such as a licence, by their names in Ray."
    )

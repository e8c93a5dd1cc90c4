"""The kinds of values that a job spec is made of: numbers, names, and the limits that they keep."""

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

# YAML 1.1 reads 1e-3, which lacks a dot, as text. Somebody who writes it means the number.
_YAML_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class Section(BaseModel):
    """A part of the spec: no unknown fields, no value of another type, no change once it is checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _yaml_number(value: Any) -> Any:
    return float(value) if isinstance(value, str) and _YAML_FLOAT.fullmatch(value) else value


def _pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _rule(pattern: str, limit: int, what: str) -> AfterValidator:
    """Text of 1 to `limit` characters that matches `pattern`; `what` says so to a person."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if len(value) > limit:
            raise ValueError(f"has {len(value)} characters: must be {what}")
        if not compiled.fullmatch(value):
            raise ValueError(f"must be {what}")
        return value

    return AfterValidator(check)


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    return value


def _not_reserved(name: str) -> str:
    if name.upper().startswith("ELASTRAIN_"):
        raise ValueError("names that begin with ELASTRAIN_ are elastrain's own: choose another")
    return name


def _plain_json(value: Any) -> Any:
    """Refuses what JSON has no word for, anywhere inside: NaN, infinities, dates, keys that are not text."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"must have text as keys inside, not {key!r}: put it in quotes")
            _plain_json(inner)
    elif isinstance(value, list):
        for inner in value:
            _plain_json(inner)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must hold finite numbers only")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"must be plain JSON, without a {type(value).__name__} inside")
    return value


# a plan hands out worker by worker, and of all who share a cluster one must not make it endless
MOST_WORKERS = 10_000

Number = Annotated[float, BeforeValidator(_yaml_number)]
NotNegative = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Fraction, Fraction], BeforeValidator(_pair)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Amount = Annotated[int, Field(ge=1, le=2**31 - 1)]
Crew = Annotated[int, Field(ge=1, le=MOST_WORKERS)]
Spares = Annotated[int, Field(ge=0, le=MOST_WORKERS)]
Cores = Annotated[Number, Field(ge=0.01, le=10**6)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]

Name = Annotated[
    str,
    _rule(
        r"[a-z0-9]([a-z0-9-]*[a-z0-9])?",
        63,
        "1 to 63 characters of a-z, 0-9 and '-', beginning and ending with a letter or digit",
    ),
]
TaskPath = Annotated[
    str,
    _rule(
        r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*",
        500,
        "module:Class, for example elastrain.trainers.tasks.digits:Digits, in at most 500 characters",
    ),
]
PackageDigest = Annotated[
    str, _rule(r"[0-9a-f]{64}", 64, "the sha256 of an uploaded package, 64 characters of 0-9 and a-f")
]
Argument = Annotated[str, _rule(r"[^\W\d]\w*", 100, "the name of a keyword argument, up to 100 characters")]
Json = Annotated[Any, AfterValidator(_plain_json)]
LabelKey = Annotated[
    str,
    _rule(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?", 63, "1 to 63 letters, digits and '.', '_', '/', '-'"),
]
LabelValue = Annotated[str, _rule(r"[^\x00-\x1f\x7f]{0,255}", 255, "at most 255 printable characters")]
EnvName = Annotated[
    str,
    _rule(r"[A-Za-z_][A-Za-z0-9_]*", 200, "letters, digits and '_', not beginning with a digit, up to 200"),
    AfterValidator(_not_reserved),
]
EnvValue = Annotated[str, Field(max_length=32_768), AfterValidator(_no_nul)]

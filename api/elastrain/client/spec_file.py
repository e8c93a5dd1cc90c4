"""A job spec from a file or a mapping, with overrides such as `optimizer.lr=0.01`."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from elastrain.client.errors import FixRequest


def read(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The spec as plain data. Raises FixRequest naming the file and, for bad YAML, the line."""
    if isinstance(source, Mapping):
        return {str(key): value for key, value in source.items()}
    path = Path(source)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FixRequest(f"The spec {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise FixRequest(f"The spec {path} is not UTF-8 text: {error.reason}.") from error
    except yaml.YAMLError as error:
        raise FixRequest(f"The spec {path} is not YAML: {error}") from error
    except RecursionError:
        raise FixRequest(f"The spec {path} is nested too deeply.") from None
    if not isinstance(data, dict):
        raise FixRequest(f"The spec {path} holds {type(data).__name__}, not a mapping of fields.")
    return data


def override(spec: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """`spec` with each `a.b=value` set; the value is read as YAML, so 0.1 is a number and null is nothing."""
    for setting in settings:
        path, found, text = setting.partition("=")
        names = path.strip().split(".")
        if not found or not all(names):
            raise FixRequest(f"--set {setting!r} is not of the form field.subfield=value.")
        try:
            value = number(yaml.safe_load(text))
        except (yaml.YAMLError, RecursionError) as error:
            raise FixRequest(f"--set {setting!r}: the value is not YAML: {error}") from error
        place = spec
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise FixRequest(f"--set {setting!r}: {name} holds {place!r} and has no fields.")
        place[names[-1]] = value
    return spec


def number(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text; here it is the number that was meant."""
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() and value[0] in "+-.0123456789" else value
        except ValueError:
            return value
    return value


def sendable(value: Any, place: str = "", above: tuple[int, ...] = ()) -> None:
    """Raises FixRequest naming the field that holds what YAML and Python know but JSON does not.

    place: such as `optimizer.lr`. above: the containers that hold `value`, by id.
    """
    if value is None or isinstance(value, str | bool | int):
        return
    name = place or "the spec"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise FixRequest(f"{name}: must be a finite number, got {value}")
    elif not isinstance(value, Mapping | list | tuple):
        kind = type(value).__name__
        raise FixRequest(f"{name}: {value} is read as a {kind}; if it is meant as text, put it in quotes")
    elif id(value) in above:
        raise FixRequest(f"{name}: holds itself")
    else:
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in pairs:
            if not isinstance(key, str | int | float | None):
                raise FixRequest(
                    f"{name}: the name {key} is read as a {type(key).__name__}: put it in quotes"
                )
            sendable(item, f"{place}.{key}" if place else str(key), (*above, id(value)))

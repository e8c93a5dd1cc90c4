"""What is wrong with a spec, said to a person: a pointer to the field, the rule, the value, the remedy."""

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


class FieldError(TypedDict):
    """pointer: JSON pointer into the spec (RFC 6901). detail: what is wrong, the value, what to do."""

    pointer: str
    detail: str


class SpecError(ValueError):
    """The spec is refused. `errors` names everything that is wrong with it."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = list(errors)
        super().__init__("; ".join(f"{error['pointer'] or 'spec'}: {error['detail']}" for error in errors))


_RULES = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_long": "must have at most {max_length} characters",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping of fields",
    "model_attributes_type": "must be a mapping of fields",
    "tuple_type": "must be a list of two numbers",
    "too_long": "must have {max_length} items",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "value_error": "{error}",
}


def translate(error: ValidationError, model: type[BaseModel]) -> list[FieldError]:
    """pydantic's findings about a spec of `model`, in our words."""
    return [_translate(found, model) for found in error.errors(include_url=False)]


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)", or nothing where nothing is near."""
    close = difflib.get_close_matches(wrong, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def show(value: Any) -> str:
    """A value as it would stand in JSON, cut to a length that a message bears."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"


def pointer(parts: Iterable[str | int]) -> str:
    """RFC 6901: each part after a slash, with ~ and / escaped."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def _translate(found: ErrorDetails, model: type[BaseModel]) -> FieldError:
    place, section = _place(found["loc"], model)
    kind, value, context = found["type"], found["input"], found.get("ctx", {})
    if kind == "extra_forbidden":
        known = list(section.model_fields) if section else []
        hint = did_you_mean(str(place[-1]), known) or f": here may stand {', '.join(known)}"
        return {"pointer": pointer(place), "detail": f"unknown field {place[-1]!r}{hint}"}
    if kind == "missing":
        return {"pointer": pointer(place), "detail": _RULES[kind]}
    if kind == "union_tag_invalid":
        place, value = [*place, "name"], context["tag"]
    rule = _RULES[kind].format(**context) if kind in _RULES else found["msg"].lower()
    detail = f"{rule}, got {show(value)}"
    if isinstance(value, str) and kind in ("literal_error", "union_tag_invalid"):
        detail += did_you_mean(value, _choices(context))
    if kind == "string_type" and isinstance(value, (int, float)):
        detail += ": put it in quotes"
    return {"pointer": pointer(place), "detail": detail}


def _choices(context: dict[str, Any]) -> list[str]:
    listed = str(context.get("expected") or context.get("expected_tags") or "")
    return [word.strip(" '") for word in listed.replace(" or ", ",").split(",")]


def _place(
    loc: tuple[str | int, ...], model: type[BaseModel]
) -> tuple[list[str | int], type[BaseModel] | None]:
    """Where the error is in the user's own words, and the section that holds the last part.

    pydantic's path also names the member of a union that it tried, and says when a mapping's key is meant:
    the user wrote neither.
    """
    place: list[str | int] = []
    section: type[BaseModel] | None = model
    members: dict[str, type[BaseModel]] = {}  # of the union that was just entered, by tag
    for index, step in enumerate(loc):
        if step == "[key]":
            continue
        if str(step) in members:
            section, members = members[str(step)], {}
            continue
        place.append(step)
        field = section.model_fields.get(str(step)) if section else None
        if field is None:
            if index < len(loc) - 1:
                section = None  # inside a mapping of the user's own
            continue
        found = _sections(field.annotation)
        members = (
            {str(member.model_fields["name"].default): member for member in found} if len(found) > 1 else {}
        )
        section = found[0] if len(found) == 1 else None
    return place, section


def _sections(annotation: Any) -> list[type[BaseModel]]:
    options = get_args(annotation) or (annotation,)
    return [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]

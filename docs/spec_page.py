"""Writes the tables of docs/spec.md from the job spec itself: names, limits, defaults and descriptions.

`make spec-page` runs it; a test says so where the page is not what the spec is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elastrain.trainers.spec import JobSpec
from elastrain.trainers.spec.support import NOT_YET

Schema = dict[str, Any]

PAGE = Path(__file__).with_name("spec.md")
TABLES = re.compile(r"(?<=<!-- fields -->\n).*(?=<!-- end of fields -->)", re.DOTALL)
KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true, false",
    "array": "list",
    "object": "mapping",
}
LIMITS = {"minimum": "≥", "ge": "≥", "gt": ">", "exclusiveMinimum": ">", "lt": "<", "le": "≤", "maximum": "≤"}
ENDLESS = 2**31 - 1  # limits from here on are of the machine: nobody meets them
LATER = {place for place, _, _ in NOT_YET}
WHOLE = JobSpec.model_json_schema()


def page() -> str:
    """The page as it has to be."""
    tables = "\n".join(line for part in (section("", WHOLE), *sections(WHOLE)) for line in part)
    return TABLES.sub(lambda _: f"\n{tables}\n", PAGE.read_text())


def sections(schema: Schema, above: str = "") -> Iterator[list[str]]:
    """A table for each field that has fields of its own, in the order of the spec."""
    for name, field in schema["properties"].items():
        place = f"{above}{name}"
        for inner in members(field):
            if set(inner["properties"]) != {"name"} and place not in LATER:
                yield section(place, inner)
                yield from sections(inner, f"{place}.")


def section(place: str, schema: Schema) -> list[str]:
    """The lines of one table, with its heading."""
    chosen = schema["properties"].get("name", {}).get("const")
    title = f"## `{place}`" + (f", name `{chosen}`" if chosen else "") if place else "## The whole"
    lines = [
        title,
        "",
        schema["description"],
        "",
        "| field | value | unless given | what |",
        "|---|---|---|---|",
    ]
    for name, field in schema["properties"].items():
        if name != "name" or not chosen:
            inner = f"{place}.{name}".lstrip(".")
            missing = "required" if name in schema.get("required", ()) else shown(field)
            later = " Not supported yet: leave it out." if inner in LATER else ""
            lines.append(f"| `{name}` | {kind(inner, field)} | {missing} | {about(field)}{later} |")
    return [*lines, ""]


def about(field: Schema) -> str:
    return str(field["description"]).replace("|", "\\|")


def members(field: Schema) -> list[Schema]:
    """The sections that a field may hold: none if it holds a plain value."""
    options = field.get("anyOf") or field.get("oneOf") or [field]
    found = [WHOLE["$defs"][option["$ref"].rpartition("/")[2]] for option in options if "$ref" in option]
    return [schema for schema in found if schema.get("type") == "object"]


def kind(place: str, field: Schema) -> str:
    """What may stand there, such as `whole number ≥ 1, or null`."""
    inner = members(field)
    if len(inner) > 1:
        names = ", ".join(f"`{schema['properties']['name']['const']}`" for schema in inner)
        return f"{names}: the bare name, or its fields"
    words = [f"[its fields](#{place.replace('.', '')})"] if inner else []
    plain = [option for option in field.get("anyOf", [field]) if "$ref" not in option]
    return ", or ".join([*words, *(word for option in plain if (word := one(option)))])


def one(option: Schema) -> str:
    if "enum" in option or "const" in option:
        return ", ".join(f"`{value}`" for value in option.get("enum", [option.get("const")]))
    limits = [
        f"{sign} {option[name]:,}"
        for name, sign in LIMITS.items()
        if name in option and abs(option[name]) < ENDLESS
    ]
    word = KINDS.get(option.get("type", ""), str(option.get("type", "")))
    return " ".join([word, " and ".join(limits)]).strip()


def shown(field: Schema) -> str:
    """The value of a field that is left out."""
    if "default" not in field:
        return (
            "its defaults" if len(members(field)) == 1 else f"`{first(field)}`" if members(field) else "empty"
        )
    value = field["default"]
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def first(field: Schema) -> str:
    """The name of what a choice is unless it is given."""
    for name, candidate in WHOLE["properties"].items():
        if candidate is field:
            default = JobSpec.model_fields[name].get_default(call_default_factory=True)
            return str(default.name)
    raise KeyError(f"a choice that is no field of the whole spec: {field}")


if __name__ == "__main__":
    PAGE.write_text(page())

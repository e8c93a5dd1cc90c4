"""Writes the table of values in helm/elastrain/README.md from the `# --` lines of values.yaml.

`make helm-readme` runs it. Every value has such a line above it, which may go on in further comment lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parent / "elastrain"
TABLE = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- end of values -->)", re.DOTALL)
KEY = re.compile(r"^( *)([A-Za-z0-9]+):")


def documented(text: str) -> dict[str, str]:
    """{path of a key: its description} for every key with a `# --` line above it."""
    found: dict[str, str] = {}
    path: list[str] = []
    about: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("# --"):
            about = [bare.removeprefix("# --").strip()]
        elif bare.startswith("#") and about:
            about.append(bare.removeprefix("#").strip())
        elif key := KEY.match(line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if about:
                found[".".join(path)] = " ".join(about)
            about = []
        else:
            about = []
    return found


def leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, value) of every value that is no map, or an empty one."""
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from leaves(value, f"{path}.{key}".lstrip("."))
    else:
        yield path, values


def lookup(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def undocumented(text: str) -> list[str]:
    """Values without a line of their own, or above them."""
    known = documented(text)
    return [
        path
        for path, _ in leaves(yaml.safe_load(text))
        if not any(path == key or path.startswith(f"{key}.") for key in known)
    ]


def table(text: str) -> str:
    values, known = yaml.safe_load(text), documented(text)
    rows = ["| Value | Default | What it is |", "|---|---|---|"]
    for path, about in known.items():
        value = lookup(values, path)
        below = isinstance(value, dict) and any(key.startswith(f"{path}.") for key in known)
        default = "" if below else f"`{json.dumps(value)}`"
        rows.append(f"| `{path}` | {default} | {about.replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def readme() -> str:
    """README.md as it should be."""
    text = (CHART / "README.md").read_text()
    return TABLE.sub(lambda _: table((CHART / "values.yaml").read_text()), text)


if __name__ == "__main__":
    (CHART / "README.md").write_text(readme())

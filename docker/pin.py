"""Writes service.txt and ray.txt: what the images install, in the versions that this environment has.

`make pins` runs it in the development environment, so the images hold what was tested. torch is not in
ray.txt: which build of it is wanted is an argument of that image.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
# torch's own build picks these; they come with it
WITH_TORCH = re.compile(r"^(torch|triton|nvidia-.*|cuda-.*)$")
IMAGES = {
    "service": ("what service, API and command line need: no torch, no Ray", ["postgres", "tracing"], None),
    "ray": ("what drivers and workers need beside torch", ["train", "examples"], WITH_TORCH),
}


def closure(wanted: Iterable[Requirement], skip: re.Pattern[str] | None) -> dict[str, str]:
    """{package: version} of requirements and, recursively, of theirs."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    left = list(wanted)
    while left:
        requirement = left.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen or name == "elastrain":
            continue
        seen.add((name, extras))
        installed = distribution(name)
        if skip is None or not skip.match(name):
            found[name] = installed.version
        for text in installed.requires or []:
            needed = Requirement(text)
            for extra in extras or {""}:
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    if skip is None or not skip.match(canonicalize_name(needed.name)):
                        left.append(needed)
                    break
    return dict(sorted(found.items()))


def pins(image: str) -> str:
    """The text of the image's file."""
    about, extras, skip = IMAGES[image]
    texts = [*PROJECT["dependencies"]]
    for extra in extras:
        texts += PROJECT["optional-dependencies"][extra]
    lines = [f"{name}=={version}" for name, version in closure(map(Requirement, texts), skip).items()]
    return f"# {about}; `make pins` writes this\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    for image in IMAGES:
        (HERE / f"{image}.txt").write_text(pins(image))

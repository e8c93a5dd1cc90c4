"""Every example spec is one that a submit would take, and together they show every choice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from elastrain.trainers.spec import JobSpec, parse_spec
from elastrain.trainers.spec.strategies import Gossip
from elastrain.trainers.spec.workers import Workers

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))


def read(path: Path) -> JobSpec:
    return parse_spec(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("path", EXAMPLES, ids=[str(p.relative_to(ROOT)) for p in EXAMPLES])
def test_an_example_is_a_spec(path: Path) -> None:
    assert read(path).name


def kinds(field: str) -> set[Any]:
    """The names of what a field of the spec may be."""
    return {kind.model_fields["name"].default for kind in get_args(JobSpec.model_fields[field].annotation)}


def literals(section: Any, field: str) -> set[Any]:
    return set(get_args(section.model_fields[field].annotation))


def split(spec: JobSpec) -> str | None:
    return spec.workers.split if spec.workers.processes > 1 else None


def staleness(spec: JobSpec) -> str | None:
    if spec.strategy.name != "parameter_server":
        return None
    return {0: "synchronous", None: "asynchronous"}.get(spec.strategy.staleness, "bounded")


def compensated(spec: JobSpec) -> bool:
    return getattr(spec.strategy, "compensation", 0.0) > 0


CHOICES: dict[str, tuple[Callable[[JobSpec], Any], set[Any]]] = {
    "strategy": (lambda spec: spec.strategy.name, kinds("strategy")),
    "staleness": (staleness, {"synchronous", "bounded", "asynchronous"}),
    "compensation": (compensated, {True}),
    "graph": (lambda spec: getattr(spec.strategy, "graph", None), literals(Gossip, "graph")),
    "compression": (lambda spec: spec.compression.name, kinds("compression")),
    "aggregate": (lambda spec: spec.aggregate, literals(JobSpec, "aggregate")),
    "split": (split, literals(Workers, "split")),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_is_made_by_an_example(choice: str) -> None:
    of, wanted = CHOICES[choice]
    assert wanted and wanted <= {of(read(path)) for path in EXAMPLES}

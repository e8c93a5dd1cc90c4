"""Every example spec is one that a submit would take."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from elastrain.trainers.spec import JobSpec, parse_spec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[str(p.relative_to(ROOT)) for p in EXAMPLES])
def test_an_example_is_a_spec(path: Path) -> None:
    spec = parse_spec(yaml.safe_load(path.read_text()))
    assert spec.name


@pytest.mark.parametrize("field", ["strategy", "compression"])
def test_every_choice_is_shown_in_an_example(field: str) -> None:
    annotation: Any = JobSpec.model_fields[field].annotation
    names = {kind.model_fields["name"].default for kind in get_args(annotation)} - {"none", "all_reduce"}
    lines = [line for path in EXAMPLES for line in path.read_text().splitlines()]
    shown = [line for line in lines if not line.startswith("name:")]
    assert len(names) > 2 and all(any(name in line for line in shown) for name in names), names

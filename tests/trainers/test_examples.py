"""Every example spec is one that a submit would take."""

from pathlib import Path

import pytest
import yaml

from elastrain.trainers.spec import parse_spec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[str(p.relative_to(ROOT)) for p in EXAMPLES])
def test_an_example_is_a_spec(path: Path) -> None:
    spec = parse_spec(yaml.safe_load(path.read_text()))
    assert spec.name

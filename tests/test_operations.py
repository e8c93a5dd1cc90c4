"""docs/operations.md promises nothing that no test proves."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPERATIONS = ROOT / "docs" / "operations.md"


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_row_of_what_dies_names_a_test_that_is_there() -> None:
    table = OPERATIONS.read_text().partition("## What happens when X dies")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        found = re.fullmatch(r"\| .+ \| .+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|", row)
        assert found is not None, row
        assert found[2] in names_in(ROOT / found[1]), row


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in [OPERATIONS, ROOT / "docs" / "monitoring.md", *(ROOT / "docs" / "runbooks").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]*)?\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_setting_of_the_service_is_kept_from_its_operators() -> None:
    source = (ROOT / "service/elastrain/service/settings.py").read_text()
    read = set(re.findall(r'read\.\w+\("([A-Z0-9_]+)"', source))
    assert len(read) > 15
    page = OPERATIONS.read_text()
    assert not {name for name in read if f"`ELASTRAIN_{name}`" not in page}

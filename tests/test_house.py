"""The rules of the house that a tool can check."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ROOTS = ("api", "service", "trainers")
LONGEST_FILE = 300  # lines
LONGEST_FUNCTION = 60  # lines
# The rooms of trainers where tensors are; every other one does without torch, also by a detour.
WITH_TORCH = {
    "": "loop task worker",
    "checkpoints": "restore snapshots tensor_file",
    "exchange": "coded collectives compression digests downward "
    "handover powersgd reducing reduction residuals transports",
    "numerics": "factors flat memory moments optimizers partials states",
    "split": "follower lockstep model pipeline stage staged stages stand_ins tensor_parallel",
    "strategies": "all_reduce choice gossip lines local_sgd orders outer pushing served serving",
    "tasks": "digits",
    "training": "ended evaluate faults formed judge replica samples session soundness step watch",
}


def sources() -> list[Path]:
    return sorted(path for root in SOURCE_ROOTS for path in (ROOT / root).rglob("*.py"))


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_no_init_file_makes_one_source_root_hide_the_other_two(root: str) -> None:
    assert not (ROOT / root / "elastrain" / "__init__.py").exists()
    assert not (ROOT / root / "__init__.py").exists()


def test_the_three_parts_import_in_one_direction_only() -> None:
    result = run(sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()")
    assert result.returncode == 0, result.stdout


def test_no_file_outgrows_one_idea() -> None:
    long = {str(path.relative_to(ROOT)): n for path in sources() if (n := _lines(path)) >= LONGEST_FILE}
    assert not long, f"split these by idea, {LONGEST_FILE} lines are too many: {long}"


def test_no_function_outgrows_a_screen() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": length
        for path in sources()
        if "migrations" not in path.parts  # generated, and read once
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > LONGEST_FUNCTION
    }
    assert not long, f"over {LONGEST_FUNCTION} lines: {long}"


def test_what_runs_without_torch_never_imports_it() -> None:
    """Also not by a detour: the driver has to start fast, and the service image has no torch at all."""
    house = ROOT / "trainers/elastrain/trainers"
    rooms = {".".join(path.relative_to(house).with_suffix("").parts) for path in house.rglob("*.py")}
    torchy = {f"{part}.{name}".lstrip(".") for part, names in WITH_TORCH.items() for name in names.split()}
    assert rooms >= torchy, f"no such rooms any more: {torchy - rooms}"
    names = [f"elastrain.trainers.{room}" for room in sorted(rooms - torchy) if "__init__" not in room]
    program = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
    assert "torch" not in sys.modules, f"{{name}} imports torch"
"""
    result = run(sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr


def test_the_service_and_the_command_line_start_without_torch_and_ray() -> None:
    program = """
import sys
import elastrain.api.app, elastrain.api.cli, elastrain.client, elastrain.service.control
heavy = sorted({"torch", "ray", "sklearn"} & set(sys.modules))
assert not heavy, f"imported at the start: {heavy}"
"""
    result = run(sys.executable, "-c", program)
    assert result.returncode == 0, result.stderr


def test_the_map_and_the_documents_name_files_that_are_there() -> None:
    files = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    files |= {re.sub(r"\b(api|service|trainers)/elastrain/\1/", r"\1/", name) for name in files}
    there = {name[at:] for name in files for at in (0, *(m.end() for m in re.finditer("/", name)))}
    missing = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text())
        if name not in there and name != "elastrain/__init__.py"  # which must not be there
    }
    assert not missing, f"no such files any more: {sorted(missing)}"


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())

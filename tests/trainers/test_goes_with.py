"""docs/algorithms.md says what goes with what; the door at the submit says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastrain.trainers.spec import SpecError, parse_spec

DOCS = Path(__file__).resolve().parents[2] / "docs" / "algorithms.md"
STRATEGIES: dict[str, dict[str, Any]] = {
    "`all_reduce`": {"name": "all_reduce"},
    "`parameter_server`, synchronous": {"name": "parameter_server", "staleness": 0},
    "`parameter_server`, asynchronous": {"name": "parameter_server", "staleness": None},
    "`local_sgd`": {"name": "local_sgd", "local_steps": 2},
    "`gossip`": {"name": "gossip"},
}
BACK = {"policy": "rollback"}
MOMENTS = {"aggregate": "moments", "optimizer": "adamw"}
FIELDS: dict[str, list[dict[str, Any]]] = {
    "`clip_norm`, `clip_value`": [{"clip_norm": 1.0}, {"clip_value": 1.0}],
    "`non_finite` and `loss_spike` with rollback": [{"non_finite": BACK}, {"loss_spike": BACK}],
    "`watch.norms`": [{"watch": {"norms": norms}} for norms in ("global", "layers")],
    "`aggregate: moments` (adam, adamw)": [MOMENTS, {**MOMENTS, "optimizer": "adam"}],
    "`compression`": [
        {"compression": c} for c in ("bf16", "fp16", "int8", {"name": "topk"}, {"name": "powersgd"})
    ],
    "`compression_down`": [{"compression_down": c} for c in ("bf16", "int8")],
    "`compensation`": [{"strategy": {"compensation": 0.1}}],
    "`replay`": [{"strategy": {"replay": "j-0000000000"}}],
    "`clip_value`": [{"clip_value": 1.0}],
    "`aggregate: moments`": [MOMENTS],
}


def rows() -> dict[str, list[str]]:
    """The table, without its head: what a row is about -> its cells."""
    text = DOCS.read_text().split("## What goes with what")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line] for line in lines]
    assert head[1:] == list(STRATEGIES)
    return {first: cells for first, *cells in body}


def fields_of(row: str) -> list[dict[str, Any]]:
    """Each choice that a row speaks of; of two that are joined by "with", one with the other."""
    if row in FIELDS:
        return FIELDS[row]
    one, other = row.split(" with ")
    return [a | b for a in FIELDS[one] for b in FIELDS[other]]


def is_taken(fields: dict[str, Any], strategy: dict[str, Any]) -> bool:
    said = {"name": "x", "task": "a:B", "steps": 9, "workers": {"max": 2}}
    try:
        parse_spec({**said, **fields, "strategy": {**strategy, **fields.get("strategy", {})}})
    except SpecError:
        return False
    return True


@pytest.mark.parametrize("row", rows())
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_the_table_says_of_two_choices_the_submit_says_too(row: str, strategy: str) -> None:
    cell = rows()[row][list(STRATEGIES).index(strategy)]
    assert cell in ("yes", "no")
    for fields in fields_of(row):
        assert is_taken(fields, STRATEGIES[strategy]) == (cell == "yes"), fields


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "adagrad"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_optimizer_goes_with_every_strategy(optimizer: str, strategy: str) -> None:
    assert is_taken({"optimizer": optimizer, "precision": "bf16"}, STRATEGIES[strategy])

"""The losses that docs/algorithms.md names for each compression: trained here, and compared."""

from __future__ import annotations

import statistics

import pytest

from numerics.together import Together
from trainers.test_bytes import DOCS, SCHEMES

STEPS, LAST = 120, 20
DOWN = {"as it is": "none", "`compression_down: int8`": "int8"}


def table() -> dict[tuple[str, str], float]:
    text = DOCS.read_text().split("*Mean training loss of steps")[1].split("\n\n")[1]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert head[1:] == list(SCHEMES)
    return {(row[0], name): float(cell) for row in rows for name, cell in zip(head[1:], row[1:], strict=True)}


@pytest.mark.parametrize("down", DOWN)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_loss_after_equal_steps_is_what_the_docs_say(scheme: str, down: str) -> None:
    spec = {
        "name": "x",
        "task": "elastrain.trainers.tasks.digits:Digits",
        "task_args": {"hidden": 128, "layers": 2},
        "optimizer": {"name": "sgd", "lr": 0.1},
        "batch": {"size": 64, "microbatch": 16},
        "steps": STEPS,
        "workers": {"min": 1, "max": 4},
        "compression": SCHEMES[scheme],
        "compression_down": DOWN[down],
    }
    trained = Together(spec, 1).train()
    loss = statistics.fmean(verdict.loss for verdict in trained.verdicts[-LAST:])
    assert loss == pytest.approx(table()[down, scheme], abs=0.005), f"{loss:.3f}"

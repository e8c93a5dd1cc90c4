"""bench/algorithms.py measures every choice that a spec has."""

from __future__ import annotations

from typing import Any, get_args

import algorithms
from elastrain.trainers.spec import JobSpec, parse_spec
from peers.ours import job_spec


def names(field: str) -> set[str]:
    """Of the kinds that a field may be."""
    annotation: Any = JobSpec.model_fields[field].annotation
    return {kind.model_fields["name"].default for kind in get_args(annotation)}


def test_every_strategy_and_compression_is_trained_and_none_is_refused() -> None:
    specs = [job_spec({"ckpt_every": 0, **system.setting}) for system in algorithms.systems()]
    assert {spec.strategy.name for spec in specs} == names("strategy")
    assert {spec.compression.name for spec in specs} == names("compression")
    assert {spec.compression_down for spec in specs} >= {"none", "int8"}
    assert {spec.aggregate for spec in specs} == {"gradients", "moments"}
    assert {getattr(spec.strategy, "staleness", 0) for spec in specs} >= {0, None}
    assert any(spec.workers.processes > 1 for spec in specs)
    assert all(spec.workers.max == algorithms.WORKERS for spec in specs)
    assert parse_spec(specs[0].model_dump(mode="json")).strategy.name == "all_reduce"

"""The door, open: a right spec is completed, comes back the same, and scales within its limits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastrain.trainers.spec import (
    JobSpec,
    SpecError,
    amended,
    parse_spec,
    spec_digest,
    warnings,
    worker_takes,
)

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))
MINIMAL: dict[str, Any] = {"name": "digits", "task": "a.b:C", "epochs": 5}
OMIT = object()


def spec(**changes: Any) -> JobSpec:
    return parse_spec({field: value for field, value in (MINIMAL | changes).items() if value is not OMIT})


def test_what_is_left_out_gets_the_default_of_the_contract() -> None:
    assert spec().model_dump(mode="json") == {
        "kind": "train",
        "name": "digits",
        "project": "default",
        "task": "a.b:C",
        "task_args": {},
        "code": None,
        "strategy": {"name": "all_reduce"},
        "aggregate": "gradients",
        "optimizer": {
            "name": "adam",
            "lr": 1e-3,
            "betas": [0.9, 0.999],
            "eps": 1e-8,
            "weight_decay": 0.0,
            "weight_decay_1d": True,
            "amsgrad": False,
            "maximize": False,
        },
        "schedule": {"warmup_steps": 0, "decay": "constant", "min_lr": 0.0},
        "clip_norm": None,
        "clip_value": None,
        "compression": "none",
        "compression_down": "none",
        "wire_nodes": None,
        "precision": "fp32",
        "batch": {"size": 256, "microbatch": 32},
        "epochs": 5,
        "steps": None,
        "seed": 0,
        "workers": {"min": 1, "max": 4, "per_group": 1, "spares": 0, "processes": 1, "split": "fully_shard"},
        "resources": {
            "cpu": 1.0,
            "gpu": 0,
            "memory": None,
            "accelerator": None,
            "labels": {},
            "custom": {},
        },
        "checkpoint": {"every_steps": 100, "every_s": None, "keep": 3, "best": None},
        "evaluate": {"every_steps": None, "at_end": True},
        "non_finite": {"policy": "skip", "max": 10, "lr_factor": 0.5, "rollbacks": 3},
        "loss_spike": {"policy": "report", "window": 32, "threshold": 5.0, "max": 3},
        "watch": {"norms": "none", "every_steps": 10},
        "shuffle": True,
        "requirements": [],
        "image": None,
        "retries": 3,
        "priority": 0,
        "env": {},
        "secrets": [],
        "resume_from": None,
        "labels": {},
        "timeout_s": None,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True}, "clip_norm": 1},
        {"optimizer": {"betas": [0.5, 0.9]}, "task_args": {"layers": [1, 2], "deep": {"x": None, "y": 0.5}}},
        {"epochs": OMIT, "steps": 10, "labels": {"team": "vision"}, "env": {"A_B": "c"}, "code": "a" * 64},
    ],
)
def test_a_completed_spec_is_the_same_spec_when_it_comes_back(changes: dict[str, Any]) -> None:
    first = spec(**changes)
    assert parse_spec(json.loads(json.dumps(first.model_dump(mode="json")))) == first


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(path.parents[1])))
def test_every_example_is_a_right_spec(path: Path) -> None:
    parse_spec(yaml.safe_load(path.read_text()))


def test_every_field_is_described_for_the_openapi_page() -> None:
    schema = JobSpec.model_json_schema()
    for owner in (schema, *schema["$defs"].values()):
        for name, field in owner.get("properties", {}).items():
            assert field.get("description"), f"{owner['title']}.{name}"


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        spec().seed = 1  # type: ignore[misc]


def test_microbatches_and_threads_follow_from_the_spec() -> None:
    assert spec(batch={"size": 64, "microbatch": 8}).microbatches == 8
    assert [spec(resources={"cpu": cpu}).threads for cpu in (0.5, 1, 1.9, 2, 3)] == [1, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("memory", "size"),
    [(1000, 1000), ("1000", 1000), ("8Gi", 8 * 2**30), ("1.5 Gi", 3 * 2**29), ("2k", 2000), ("1T", 10**12)],
)
def test_memory_is_read_as_people_write_it(memory: int | str, size: int) -> None:
    asked = spec(resources={"cpu": 2, "memory": memory, "custom": {"licence": 1}}).resources
    takes = worker_takes(asked.model_dump())
    assert takes == {"CPU": 2.0, "GPU": 0.0, "memory": float(size), "licence": 1.0}


def test_a_bare_name_stands_for_the_thing_with_its_defaults() -> None:
    assert spec(strategy="all_reduce") == spec()
    assert spec(optimizer="rmsprop").optimizer == spec(optimizer={"name": "rmsprop"}).optimizer


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "run-1", "a--b"])
def test_a_name_within_the_rule_is_taken(name: str) -> None:
    assert spec(name=name).name == name


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "two", None, True, 9, 10**9])
@pytest.mark.parametrize("bound", ["min", "max"])
def test_scaling_to_an_impossible_size_names_the_allowed_range(bound: str, wrong: Any) -> None:
    # Case B10; the batch has 8 microbatches.
    job = spec(workers={"min": 1, "max": 3})
    with pytest.raises(SpecError) as caught:
        amended(job, {"workers": {bound: wrong}})
    details = [error["detail"] for error in caught.value.errors if error["pointer"].startswith("/workers")]
    assert details
    assert all("allowed: 1 to 8 workers" in detail for detail in details)


def test_scaling_keeps_what_is_not_named() -> None:
    job = spec(workers={"min": 1, "max": 3}, labels={"a": "b"})
    scaled = amended(job, {"workers": {"max": 5}, "priority": 7})
    assert (scaled.workers.min, scaled.workers.max, scaled.priority) == (1, 5, 7)
    assert scaled.labels == {"a": "b"}
    assert spec_digest(scaled) == spec_digest(job)


def test_the_parts_of_a_sum_limit_the_workers_for_the_jobs_life() -> None:
    job = spec(workers={"min": 1, "max": 3}, wire_nodes=4)
    assert amended(job, {"workers": {"max": 4}}).wire_nodes == 4
    with pytest.raises(SpecError, match=r"5 workers are more than the 4 parts.*allowed: 1 to 4 workers"):
        amended(job, {"workers": {"max": 5}})
    with pytest.raises(SpecError, match="9 is more than the 8 microbatches of a step"):
        spec(wire_nodes=9)


def test_a_compressed_job_keeps_the_parts_that_it_was_submitted_with() -> None:
    job = spec(compression="int8", workers={"min": 1, "max": 3})
    assert job.wire_nodes == 4, "8 microbatches in subtrees of two"
    fewer = amended(job, {"workers": {"max": 1}})
    assert fewer.wire_nodes == 4 and spec_digest(fewer) == spec_digest(job)
    with pytest.raises(SpecError, match="5 workers are more than the 4 parts"):
        amended(job, {"workers": {"max": 5}})
    assert spec(compression="bf16", batch={"size": 96, "microbatch": 16}).wire_nodes == 6, "nobody idles"


@pytest.mark.parametrize("name", ["none", "bf16", "fp16", "int8"])
def test_compression_without_arguments_is_shown_as_its_bare_name(name: str) -> None:
    for said in (name, {"name": name}):
        job = spec(compression=said)
        assert job.model_dump(mode="json")["compression"] == name
        assert parse_spec(job.model_dump(mode="json")) == job


def test_compression_takes_its_own_arguments() -> None:
    assert spec(compression="topk").model_dump()["compression"] == {"name": "topk", "fraction": 0.01}
    assert spec(compression={"name": "powersgd", "rank": 2}).model_dump()["compression"]["rank"] == 2
    digests = {spec_digest(spec(compression={"name": "topk", "fraction": f})) for f in (0.01, 0.02)}
    assert len(digests) == 2


def test_a_compression_that_saves_nothing_is_warned_of() -> None:
    assert warnings(spec()) == []
    two = {"min": 1, "max": 2}
    assert warnings(spec(compression="bf16")) == warnings(spec(compression="int8", workers=two)) == []
    assert warnings(spec(compression_down="int8")) == []
    (said,) = warnings(spec(compression_down="int8", workers=two))
    assert "int8 with workers.max 2: up to two workers send nothing down" in said
    (said,) = warnings(spec(compression="int8", workers={"min": 1, "max": 1}))
    assert "int8 with workers.max 1: nothing travels" in said
    assert warnings(spec(compression="powersgd", workers={"min": 1, "max": 8})) == []
    (said,) = warnings(spec(compression="topk", workers=two))
    assert "topk with adam" in said and "use sgd" in said


def test_a_microbatch_that_makes_few_pieces_for_a_pipeline_is_warned_of() -> None:
    staged = {"processes": 3, "split": "pipeline"}
    assert warnings(spec(workers=staged)) == []  # 32 samples in 8
    (said,) = warnings(spec(workers=staged, batch={"size": 124, "microbatch": 31}))
    assert "batch.microbatch 31: its samples go through the 3 stages in 1 equal piece, so" in said
    assert warnings(spec(workers={"processes": 3}, batch={"size": 124, "microbatch": 31})) == []


def test_groups_scale_in_whole_groups() -> None:
    job = spec(workers={"min": 2, "max": 4, "per_group": 2})
    with pytest.raises(SpecError, match="allowed: 2 to 8 workers in steps of 2"):
        amended(job, {"workers": {"max": 5}})


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "+1e-3", "1.e-3"])
def test_a_number_that_yaml_reads_as_text_is_still_a_number(text: str) -> None:
    assert isinstance(yaml.safe_load("1e-3"), str), "this is why"
    assert spec(optimizer={"lr": text}).optimizer.lr == 1e-3


def test_the_digest_follows_what_decides_the_result_and_nothing_else() -> None:
    yardstick = spec_digest(spec())
    same = [
        {"name": "other"},
        {"workers": {"min": 2, "max": 8}},
        {"checkpoint": {"every_steps": 7}},
        {"evaluate": {"every_steps": 3}},
        {"labels": {"a": "b"}},
        {"priority": 3},
        {"retries": 9},
        {"env": {"A": "b"}},
        {"optimizer": {"lr": 0.001}},
        {"watch": {"norms": "layers"}},
        {"loss_spike": {"threshold": 9}},
        {"non_finite": {"rollbacks": 9}},  # nobody rolls back
    ]
    other = [
        {"seed": 1},
        {"task_args": {"hidden": 1}},
        {"optimizer": {"lr": 0.002}},
        {"batch": {"size": 128}},
        {"epochs": 6},
        {"resources": {"cpu": 2}},
        {"clip_norm": 1.0},
        {"shuffle": False},
        {"clip_value": 1.0},
        {"non_finite": {"policy": "fail"}},
        {"non_finite": {"policy": "rollback"}},
        {"non_finite": {"policy": "rollback", "lr_factor": 0.1}},
        {"loss_spike": {"policy": "rollback"}},
        {"schedule": {"decay": "linear"}},
        {"code": "0" * 64},
        {"wire_nodes": 4},
        {"compression_down": "int8"},
    ]
    assert {spec_digest(spec(**changes)) for changes in same} == {yardstick}
    assert len({spec_digest(spec(**changes)) for changes in other} | {yardstick}) == len(other) + 1
    assert len(yardstick) == 64


def test_the_door_opens_without_torch_or_numpy() -> None:
    code = (
        "import sys, elastrain.trainers.spec; "
        "print([m for m in ('torch', 'numpy', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

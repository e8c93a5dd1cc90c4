"""The door, shut: each wrong value is refused where it stands, with the rule, the value and the remedy."""

from typing import Any

import pytest
import yaml

from elastrain.trainers.spec import SpecError, parse_spec

MINIMAL: dict[str, Any] = {"name": "digits", "task": "a.b:C", "epochs": 5}
OMIT = object()
DIGITS = "elastrain.trainers.tasks.digits:Digits"


def refused(**changes: Any) -> dict[str, str]:
    """pointer -> detail of everything that is wrong."""
    with pytest.raises(SpecError) as caught:
        parse_spec({field: value for field, value in (MINIMAL | changes).items() if value is not OMIT})
    return {error["pointer"]: error["detail"] for error in caught.value.errors}


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("sgd", "betas"),
        ("adam", "momentum"),
        ("rmsprop", "nesterov"),
        ("adagrad", "alpha"),
        ("adamw", "foreach"),
    ],
)
def test_an_optimizer_takes_only_its_own_arguments(name: str, option: str) -> None:
    errors = refused(optimizer={"name": name, option: 0.5})
    assert f"unknown field '{option}'" in errors[f"/optimizer/{option}"]


@pytest.mark.parametrize(
    ("changes", "pointer", "meant"),
    [
        ({"optmizer": {}}, "/optmizer", "optimizer"),
        ({"epoch": 3}, "/epoch", "epochs"),
        ({"batch": {"micro_batch": 3}}, "/batch/micro_batch", "microbatch"),
        ({"workers": {"maxx": 3}}, "/workers/maxx", "max"),
        ({"optimizer": {"name": "sgd", "momentun": 0.9}}, "/optimizer/momentun", "momentum"),
        ({"optimizer": {"name": "addam"}}, "/optimizer/name", "adam"),
        ({"strategy": "allreduce"}, "/strategy/name", "all_reduce"),
        ({"strategy": {"name": "local_sgd", "steps": 2}}, "/strategy/steps", "local_steps"),
        ({"checkpoint": {"best": {"metrics": "x"}}}, "/checkpoint/best/metrics", "metric"),
        ({"schedule": {"decay": "cosin"}}, "/schedule/decay", "cosine"),
        ({"compression": "powerSGD"}, "/compression/name", "powersgd"),
        ({"kind": "trian"}, "/kind", "train"),
    ],
)
def test_a_slip_of_the_pen_is_met_with_did_you_mean(
    changes: dict[str, Any], pointer: str, meant: str
) -> None:
    assert f"did you mean '{meant}'?" in refused(**changes)[pointer]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    # what is written, where the error points, what it says
    ({"name": OMIT}, "/name", "is required"),
    ({"task": OMIT}, "/task", "is required"),
    ({"task": "a.b.C"}, "/task", 'must be module:Class, for example'),
    ({"task": "a b:C"}, "/task", "must be module:Class"),
    ({"compression": {"name": "topk", "fraction": 0}}, "/compression/fraction", "must be more than 0"),
    ({"compression": {"name": "topk", "fraction": 1.5}}, "/compression/fraction", "must be at most 1"),
    ({"compression": {"name": "powersgd", "rank": 0}}, "/compression/rank", "must be at least 1"),
    ({"compression": "int8", "aggregate": "moments"}, "/compression/name", "int8 does not go with aggregate"),
    ({"compression": {"name": "int8", "rank": 2}}, "/compression/rank", "unknown field 'rank'"),
    ({"task": ""}, "/task", "must be module:Class"),
    ({"task": DIGITS.replace("Digits", "Digit")}, "/task", "(did you mean 'digits:Digits'?)"),
    ({"task": DIGITS.replace("digits:", "digts:")}, "/task", "(did you mean 'digits:Digits'?)"),
    ({"task": DIGITS.replace("digits:Digits", "resnet:ResNet")}, "/task", ": there are digits:Digits"),
    ({"task": DIGITS, "task_args": {"hiden": 8}}, "/task_args/hiden", "(did you mean 'hidden'?)"),
    ({"task": DIGITS, "task_args": {"x": 8}}, "/task_args/x", "it takes hidden, layers, channels"),
    ({"task_args": {"not a name": 1}}, "/task_args/not a name", "keyword argument"),
    ({"task_args": [1]}, "/task_args", "must be a mapping, got [1]"),
    ({"task_args": {"x": {"y": [float("nan")]}}}, "/task_args/x", "finite numbers only"),
    ({"task_args": {"x": {1: 2}}}, "/task_args/x", "text as keys"),
    ({"task_args": {"x": yaml.safe_load("2026-01-01")}}, "/task_args/x", "plain JSON"),
    ({"code": "abc"}, "/code", "sha256"),
    ({"epochs": OMIT}, "/epochs", "exactly one of epochs and steps, got neither"),
    ({"steps": 3}, "/epochs", "exactly one of epochs and steps, got epochs 5 and steps 3"),
    ({"epochs": 0}, "/epochs", "must be at least 1, got 0"),
    ({"epochs": True}, "/epochs", "must be a whole number, got true"),
    ({"epochs": "2"}, "/epochs", 'must be a whole number, got "2"'),
    ({"epochs": 2.0}, "/epochs", "must be a whole number, got 2.0"),
    ({"epochs": OMIT, "steps": -1}, "/steps", "must be at least 1, got -1"),
    ({"seed": -1}, "/seed", "must be at least 0"),
    ({"seed": 2**63}, "/seed", "must be at most"),
    ({"shuffle": 1}, "/shuffle", "must be true or false, got 1"),
    ({"shuffle": "no"}, "/shuffle", "must be true or false"),
    ({"batch": {"size": 100, "microbatch": 33}}, "/batch/microbatch", "33 does not divide batch.size 100"),
    ({"batch": {"size": 0}}, "/batch/size", "must be at least 1, got 0"),
    ({"batch": 256}, "/batch", "must be a mapping of fields, got 256"),
    ({"batch": None}, "/batch", "must be a mapping of fields, got null"),
    ({"workers": {"max": 9}}, "/workers/max", "9 workers are more than the 8 microbatches of a step"),
    ({"workers": {"min": 3, "max": 2}}, "/workers/min", "workers.min 3 is more than workers.max 2"),
    (
        {"workers": {"min": 2, "max": 4, "per_group": 2, "spares": 1}},
        "/workers/spares",
        "1 is not a multiple of",
    ),
    ({"workers": {"processes": 0}}, "/workers/processes", "must be at least 1, got 0"),
    ({"workers": {"processes": 33}}, "/workers/processes", "33 processes are more than the 32 samples"),
    ({"workers": {"processes": 2, "split": "layers"}}, "/workers/split", "must be 'fully_shard', 'tensor'"),
    (
        {"workers": {"processes": 2, "split": "pipeline"}, "strategy": "local_sgd"},
        "/workers/processes",
        "all_reduce only so far",
    ),
    ({"workers": {"processes": 2}, "strategy": "gossip"}, "/workers/processes", "all_reduce only so far"),
    ({"workers": {"processes": 2}, "aggregate": "moments"}, "/workers/processes", "gradients only so far"),
    ({"workers": {"processes": 2}, "compression": "int8"}, "/workers/processes", "none only so far"),
    ({"workers": {"processes": 2}, "watch": {"norms": "layers"}}, "/workers/processes", "watch none only"),
    ({"workers": {"min": 2, "max": 5, "per_group": 2}}, "/workers/max", "5 is not a multiple of"),
    ({"workers": {"min": 1, "max": 4, "per_group": 2}}, "/workers/min", "1 is not a multiple of"),
    ({"optimizer": {"lr": float("nan")}}, "/optimizer/lr", "must be a finite number, got NaN"),
    ({"optimizer": {"lr": float("inf")}}, "/optimizer/lr", "must be a finite number"),
    ({"optimizer": {"lr": -0.1}}, "/optimizer/lr", "must be at least 0, got -0.1"),
    ({"optimizer": {"lr": "fast"}}, "/optimizer/lr", 'must be a number, got "fast"'),
    ({"optimizer": {"lr": "2"}}, "/optimizer/lr", 'must be a number, got "2"'),
    ({"optimizer": {"lr": True}}, "/optimizer/lr", "must be a number, got true"),
    ({"optimizer": {"lr": None}}, "/optimizer/lr", "must be a number, got null"),
    ({"optimizer": {"betas": [0.9, 1.0]}}, "/optimizer/betas/1", "must be less than 1"),
    ({"optimizer": {"betas": [0.9]}}, "/optimizer/betas/1", "is required"),
    ({"optimizer": {"betas": 0.9}}, "/optimizer/betas", "must be a list of two numbers"),
    ({"optimizer": {"name": "sgd", "nesterov": True}}, "/optimizer/nesterov", "needs momentum above 0"),
    ({"aggregate": "moments", "optimizer": "sgd"}, "/aggregate", "adam and adamw, got sgd: use gradients"),
    ({"aggregate": "squares"}, "/aggregate", "must be 'gradients' or 'moments'"),
    ({"optimizer": 3}, "/optimizer", "must be a mapping of fields, got 3"),
    ({"optimizer": {"name": None}}, "/optimizer/name", "must be one of 'sgd', 'adam'"),
    ({"schedule": {"warmup_steps": -1}}, "/schedule/warmup_steps", "must be at least 0"),
    ({"schedule": {"min_lr": 0.1}}, "/schedule/min_lr", "min_lr 0.1 is more than optimizer.lr 0.001"),
    ({"clip_norm": 0}, "/clip_norm", "must be more than 0, got 0"),
    ({"precision": "fp64"}, "/precision", "must be 'fp32' or 'bf16'"),
    ({"checkpoint": {"keep": 0}}, "/checkpoint/keep", "must be at least 1"),
    ({"checkpoint": {"every_s": 0}}, "/checkpoint/every_s", "must be more than 0"),
    ({"evaluate": True}, "/evaluate", "must be a mapping of fields, got true"),
    ({"non_finite": {"policy": "ignore"}}, "/non_finite/policy", "must be 'skip', 'fail' or 'rollback'"),
    ({"non_finite": {"lr_factor": 0}}, "/non_finite/lr_factor", "must be more than 0, got 0"),
    ({"non_finite": {"lr_factor": 1.5}}, "/non_finite/lr_factor", "must be at most 1, got 1.5"),
    ({"loss_spike": {"window": 4}}, "/loss_spike/window", "must be at least 8, got 4"),
    ({"watch": {"norms": "all"}}, "/watch/norms", "must be 'none', 'global' or 'layers'"),
    ({"strategy": "gossip", "watch": {"norms": "layers"}}, "/watch/norms", "nobody has under gossip"),
    ({"strategy": "gossip", "compression": "int8"}, "/compression/name", "does not go with strategy gossip"),
    (
        {"strategy": {"name": "parameter_server", "staleness": 2}, "compression": "bf16"},
        "/compression/name",
        "does not go with strategy parameter_server with staleness 2",
    ),
    ({"strategy": "gossip", "compression_down": "bf16"}, "/compression_down", "does not go with strategy"),
    ({"compression_down": "fp16"}, "/compression_down", "must be 'none', 'bf16' or 'int8'"),
    ({"strategy": "gossip", "aggregate": "moments"}, "/aggregate", "moments goes with all_reduce"),
    ({"clip_value": 0}, "/clip_value", "must be more than 0, got 0"),
    ({"clip_value": 1.0, "aggregate": "moments"}, "/clip_value", "moments cannot be clipped by value"),
    ({"resources": {"cpu": 0}}, "/resources/cpu", "must be at least 0.01"),
    ({"resources": {"memory": "lots"}}, "/resources/memory", "such as 8Gi"),
    ({"resources": {"memory": 0}}, "/resources/memory", "such as 8Gi"),
    ({"resources": {"memory": True}}, "/resources/memory", "such as 8Gi"),
    ({"resources": {"memory": "9000Ti"}}, "/resources/memory", "such as 8Gi"),
    ({"resources": {"custom": {"CPU": 1}}}, "/resources/custom", "'CPU' cannot be a custom resource"),
    ({"resources": {"custom": {"a b": 1}}}, "/resources/custom", "must be 1 to 63 letters"),
    ({"resources": {"custom": {"licence": 0}}}, "/resources/custom/licence", "must be at least 0.0001"),
    ({"resources": {"custom": {f"r{n}": 1 for n in range(17)}}}, "/resources/custom", "at most 16 names"),
    ({"retries": -1}, "/retries", "must be at least 0"),
    ({"priority": 1.5}, "/priority", "must be a whole number"),
    ({"env": {"A": 1}}, "/env/A", "must be text, got 1: put it in quotes"),
    ({"env": {"1A": "x"}}, "/env/1A", "not beginning with a digit"),
    ({"env": {"A=B": "x"}}, "/env/A=B", "letters, digits and '_'"),
    ({"env": {"ELASTRAIN_TOKEN": "x"}}, "/env/ELASTRAIN_TOKEN", "elastrain's own"),
    ({"env": {"A": "x\0"}}, "/env/A", "NUL"),
    ({"labels": {"a:b": "x"}}, "/labels/a:b", "letters, digits"),
    ({"labels": {"a/b": "x" * 256}}, "/labels/a~1b", "at most 255 printable characters"),
    ({"labels": {"a": "x\ny"}}, "/labels/a", "printable"),
    ({"labels": {f"k{i}": "v" for i in range(65)}}, "/labels", "64"),
    ({"project": "My Project"}, "/project", "1 to 63 characters"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "pointer", "says"), WRONG, ids=[f"{p}-{i}" for i, (_, p, _) in enumerate(WRONG)]
)
def test_a_wrong_value_is_refused_where_it_stands(changes: dict[str, Any], pointer: str, says: str) -> None:
    errors = refused(**changes)
    assert set(errors) == {pointer}
    assert says in errors[pointer]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"resources": {"gpu": 1}}, "/resources/gpu"),
        ({"checkpoint": {"best": {"metric": "val_accuracy", "mode": "max"}}}, "/checkpoint/best"),
        ({"requirements": ["pandas"]}, "/requirements"),
        ({"image": "me/mine:1"}, "/image"),
        ({"secrets": ["TOKEN"]}, "/secrets"),
        ({"kind": "ray_train"}, "/kind"),
    ],
)
def test_what_does_not_exist_yet_is_refused_rather_than_ignored(
    changes: dict[str, Any], pointer: str
) -> None:
    errors = refused(**changes)
    assert set(errors) == {pointer}
    assert "not supported yet" in errors[pointer]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 64,
        "a" * 200,
        "a" * 10_000,
        "   ",
        "-a",
        "a-",
        "..",
        "🙂",
        "a\nb",
        "a\n",
        "A",
        "a_b",
        "run[1]",
    ],
)
def test_a_name_that_is_no_name_is_refused_with_the_rule(name: str) -> None:
    # Case G04.
    errors = refused(name=name)
    assert "1 to 63 characters of a-z, 0-9 and '-'" in errors["/name"]
    assert len(errors["/name"]) < 300, "a name of 10,000 characters is not repeated"


@pytest.mark.parametrize("microbatch", [0, -1, 1.5, "two", None])
def test_a_microbatch_that_is_no_size_is_refused(microbatch: Any) -> None:
    # Case D04.
    assert "/batch/microbatch" in refused(batch={"size": 8, "microbatch": microbatch})


def test_everything_that_is_wrong_is_said_at_once() -> None:
    errors = refused(
        nmae="x",
        seed="zero",
        optimizer={"name": "sgd", "beta1": 0.9, "lr": -1},
        workers={"max": 99},
        image="me/mine:1",
        steps=3,
    )
    assert set(errors) == {
        "/nmae",
        "/seed",
        "/optimizer/beta1",
        "/optimizer/lr",
        "/workers/max",
        "/image",
        "/epochs",
    }


def test_a_fault_is_not_blamed_on_what_depends_on_it() -> None:
    assert set(refused(batch={"size": "many"}, workers={"max": 64})) == {"/batch/size"}
    assert set(refused(epochs="five")) == {"/epochs"}


@pytest.mark.parametrize("data", [None, [], "name: x", 3])
def test_what_is_no_mapping_is_no_spec(data: Any) -> None:
    with pytest.raises(SpecError, match="a job spec is a mapping of fields"):
        parse_spec(data)


def test_keys_that_are_not_text_are_refused() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(MINIMAL | {1: 2})  # type: ignore[dict-item]
    assert [error["pointer"] for error in caught.value.errors] == ["/1"]

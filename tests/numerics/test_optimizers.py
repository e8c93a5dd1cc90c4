"""Each rule, on flat chunks, against torch.optim on whole parameters."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from elastrain.trainers.numerics.optimizers import Rule, rule
from elastrain.trainers.spec import JobSpec, parse_spec

STEPS = 100
SIZES = (7, 13, 1, 64, 1000)  # elements of the parameters that make up the flat buffer

CASES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"lr": 0.1, "momentum": 0.9}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("adam", {}),
    ("adam", {"lr": 0.05, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}),
    ("adam", {"amsgrad": True, "maximize": True}),
    ("adamw", {}),
    ("adamw", {"lr": 0.05, "betas": [0.5, 0.9], "weight_decay": 0.3, "amsgrad": True}),
    ("rmsprop", {}),
    ("rmsprop", {"alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1}),
    ("rmsprop", {"centered": True, "momentum": 0.5, "eps": 1e-4}),
    ("rmsprop", {"centered": True, "maximize": True}),
    ("adagrad", {}),
    ("adagrad", {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1}),
    ("adagrad", {"initial_accumulator_value": 0.5, "eps": 1e-6, "maximize": True}),
]
TORCH = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{'-'.join(o)}" for n, o in CASES])


def job(optimizer: dict[str, Any]) -> JobSpec:
    return parse_spec({"name": "x", "task": "a:B", "steps": STEPS, "optimizer": optimizer})


def gradients(steps: int = STEPS) -> Tensor:
    """(steps, elements) f32: of very different sizes, some zero."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(steps, sum(SIZES), generator=generator)
    values *= 10.0 ** torch.randint(-6, 3, values.shape, generator=generator)
    values[values.abs() < 1e-6] = 0.0
    return values


def start() -> Tensor:
    return torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(2))


def torch_result(
    name: str, options: dict[str, Any], grads: Tensor, sizes: Sequence[int], **path: bool
) -> Tensor:
    params = [torch.nn.Parameter(part.clone()) for part in start().split(sizes)]
    kwargs = options | ({"betas": tuple(options["betas"])} if "betas" in options else {})
    optimizer = TORCH[name](params, **path, **kwargs)
    for grad in grads:
        for param, part in zip(params, grad.split(sizes), strict=True):
            param.grad = part.clone()
        optimizer.step()
    return torch.cat([param.detach() for param in params])


def run(rule: Rule, spec: JobSpec, param: Tensor, grads: Tensor) -> Tensor:
    state = {slot: rule.init(slot, param) for slot in rule.slots}
    for t, grad in enumerate(grads, start=1):
        rule.update(param, grad, state, t, spec.optimizer.lr, spec.optimizer.weight_decay)
    return param


@every_case
def test_a_flat_chunk_gets_the_bits_of_torch_optim(name: str, options: dict[str, Any]) -> None:
    spec = job({"name": name, **options})
    ours = run(rule(spec.optimizer), spec, start(), gradients())
    if name in ("adam", "adamw"):  # the fused kernel; the path without it agrees within rounding
        theirs = torch_result(name, options, gradients(), [sum(SIZES)], fused=True)
        plain = torch_result(name, options, gradients(), SIZES, foreach=False)
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    else:
        theirs = torch_result(name, options, gradients(), SIZES, foreach=False)
    assert torch.equal(ours, theirs)


@every_case
def test_where_a_chunk_is_cut_does_not_change_a_bit(name: str, options: dict[str, Any]) -> None:
    spec = job({"name": name, **options})
    grads = gradients(10)
    whole = run(rule(spec.optimizer), spec, start(), grads)
    for cut in (64, 192, 1024):
        parts = [
            run(rule(spec.optimizer), spec, param, grad)
            for param, grad in zip(start().split(cut), grads.split(cut, dim=1), strict=True)
        ]
        assert torch.equal(torch.cat(parts), whole), f"cut every {cut} elements"


@every_case
def test_more_threads_do_not_change_a_bit(name: str, options: dict[str, Any]) -> None:
    spec = job({"name": name, **options})
    generator = torch.Generator().manual_seed(3)
    param, grads = torch.randn(300_007, generator=generator), torch.randn(2, 300_007, generator=generator)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(run(rule(spec.optimizer), spec, param.clone(), grads))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


@every_case
def test_the_gradient_is_left_as_it_is(name: str, options: dict[str, Any]) -> None:
    spec = job({"name": name, **options})
    grads = gradients(3)
    run(rule(spec.optimizer), spec, start(), grads)
    assert torch.equal(grads, gradients(3))


def test_adam_keeps_its_moments_as_case_c07_expects() -> None:
    spec = job({"name": "adam", "lr": 0.1})
    adam, param = rule(spec.optimizer), torch.zeros(1)
    state = {slot: adam.init(slot, param) for slot in adam.slots}
    seen = []
    for t, gradient in enumerate([1.0] * 5 + [0.1] * 3, start=1):
        adam.update(param, torch.tensor([gradient]), state, t, 0.1, 0.0)
        seen.append(param.item())
    assert seen[5:] == pytest.approx([-0.588437, -0.667857, -0.740016], abs=1e-5)


def test_every_slot_is_named_as_torch_names_it() -> None:
    for name, options in CASES:
        ours = set(rule(job({"name": name, **options}).optimizer).slots)
        param = torch.nn.Parameter(torch.ones(3))
        param.grad = torch.ones(3)
        kwargs = options | ({"betas": tuple(options["betas"])} if "betas" in options else {})
        optimizer = TORCH[name]([param], foreach=False, **kwargs)
        optimizer.step()
        theirs = {key for key, value in optimizer.state[param].items() if value is not None} - {"step"}
        renamed = {slot.replace("max_exp_avg_sqs", "max_exp_avg_sq") for slot in theirs}
        assert ours == renamed, (name, options)

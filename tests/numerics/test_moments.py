"""Adam of averaged moments, against the formula in plain double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from elastrain.trainers.numerics.moments import AdamOfMoments, squares
from elastrain.trainers.numerics.optimizers import Adam
from elastrain.trainers.spec import AdamSpec, AdamWSpec

Array = NDArray[np.float64]
ELEMENTS, STEPS, LR = 192, 30, 0.02
WEIGHTS = np.array([8.0, 3.0, 8.0, 5.0])  # samples of the microbatches of a step
CASES: list[tuple[str, dict[str, Any]]] = [
    ("adam", {}),
    ("adam", {"betas": (0.5, 0.8), "eps": 1e-4, "weight_decay": 0.1}),
    ("adam", {"maximize": True, "weight_decay": 0.1}),
    ("adam", {"amsgrad": True, "betas": (0.9, 0.5)}),
    ("adamw", {"weight_decay": 0.3}),
    ("adamw", {"maximize": True, "amsgrad": True}),
]


def spec_of(name: str, options: dict[str, Any]) -> AdamSpec | AdamWSpec:
    return AdamSpec(**options) if name == "adam" else AdamWSpec(**options)


def draw(microbatches: int) -> Array:
    """(steps, microbatches, elements): gradients that disagree within a step."""
    return np.random.default_rng(3).normal(size=(STEPS, microbatches, ELEMENTS)) + 0.3


def plain(spec: AdamSpec | AdamWSpec, gradients: Array, weights: Array) -> Array:
    """Each microbatch makes its own estimates from the common ones; their weighted means are the next."""
    x, m, v = np.full(ELEMENTS, 0.5), np.zeros(ELEMENTS), np.zeros(ELEMENTS)
    largest, (beta1, beta2) = np.zeros(ELEMENTS), spec.betas
    for t, step in enumerate(gradients, start=1):
        if isinstance(spec, AdamWSpec):
            x = x - LR * spec.weight_decay * x
        estimates_m, estimates_v = [], []
        for gradient in step:
            g = -gradient if spec.maximize else gradient
            g = g + (spec.weight_decay * x if isinstance(spec, AdamSpec) else 0.0)
            estimates_m.append(beta1 * m + (1 - beta1) * g)
            estimates_v.append(beta2 * v + (1 - beta2) * g * g)
        m = np.average(estimates_m, axis=0, weights=weights)
        v = np.average(estimates_v, axis=0, weights=weights)
        largest = np.maximum(largest, v)
        second = largest if spec.amsgrad else v
        x = x - LR * (m / (1 - beta1**t)) / (np.sqrt(second / (1 - beta2**t)) + spec.eps)
    return x


def ours(spec: AdamSpec | AdamWSpec, gradients: Array, weights: Array, cut: int = ELEMENTS) -> torch.Tensor:
    """As the engine: scaled sums go up, are divided by the weight, and reach the rule in two lanes."""
    rule, param, scale = AdamOfMoments(spec), torch.full((ELEMENTS,), 0.5), 2.0**-5
    parts = list(param.split(cut))
    states = [{slot: rule.init(slot, part) for slot in rule.slots} for part in parts]
    for t, step in enumerate(gradients, start=1):
        total = torch.zeros(2, ELEMENTS)
        for gradient, weight in zip(step, weights, strict=True):
            lanes = torch.empty(2, ELEMENTS)
            lanes[0] = torch.from_numpy(gradient * weight * scale)
            squares(scale, float(weight))(lanes[0], [lanes[1]])
            total += lanes
        means = total / (scale * weights.sum())
        for part, state, mean in zip(parts, states, means.split(cut, dim=1), strict=True):
            rule.update(part, mean, state, t, LR, spec.weight_decay)
    return param


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_moments_are_the_means_of_every_microbatchs_own(name: str, options: dict[str, Any]) -> None:
    spec = spec_of(name, options)
    expected = plain(spec, draw(4), WEIGHTS)
    np.testing.assert_allclose(ours(spec, draw(4), WEIGHTS).numpy(), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_with_one_microbatch_a_step_it_is_adam(name: str, options: dict[str, Any]) -> None:
    spec, gradients = spec_of(name, options), draw(1)
    param = torch.full((ELEMENTS,), 0.5)
    rule = Adam(spec)
    state = {slot: rule.init(slot, param) for slot in rule.slots}
    for t, step in enumerate(gradients, start=1):
        rule.update(param, torch.from_numpy(step[0]).float(), state, t, LR, spec.weight_decay)
    torch.testing.assert_close(ours(spec, gradients, np.array([8.0])), param, rtol=2e-4, atol=2e-5)


def test_microbatches_that_disagree_make_shorter_steps_than_their_mean_does() -> None:
    spec, gradients = AdamSpec(), np.tile(np.array([[1.5], [-0.5]]), (STEPS, 1, ELEMENTS))
    of_moments = ours(spec, gradients, np.ones(2))  # mean 0.5, mean of squares 1.25
    assert float(0.5 - of_moments[0]) == pytest.approx(STEPS * LR * 0.5 / 1.25**0.5, rel=1e-3)


@pytest.mark.parametrize("cut", [64, 128])
def test_where_a_chunk_is_cut_does_not_change_a_bit(cut: int) -> None:
    spec = AdamSpec(weight_decay=0.1, amsgrad=True)
    assert torch.equal(ours(spec, draw(4), WEIGHTS, cut), ours(spec, draw(4), WEIGHTS))


def test_a_microbatch_without_weight_has_no_square() -> None:
    lanes = torch.tensor([[0.0, 0.0], [7.0, 7.0]])
    squares(0.5, 0.0)(lanes[0], [lanes[1]])
    assert lanes[1].tolist() == [0.0, 0.0]


def test_a_gradient_so_small_that_its_scaled_square_would_vanish_keeps_its_square() -> None:
    scale, gradient = 2.0**-20, 2.0**-55
    lanes = torch.tensor([[gradient * scale], [0.0]])
    squares(scale, 1.0)(lanes[0], [lanes[1]])
    assert float(lanes[1][0]) == gradient * gradient * scale

"""Every way to make an update that a spec can choose, and what plain arithmetic says that it does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest

from engine.harness import probe

Steps = Sequence[Sequence[float]]  # by step the gradient of each microbatch
Fields = dict[str, Any]

ADAM = {"name": "adam", "lr": 0.1}
SERVED = {"name": "parameter_server", "servers": 2}
PUSHED = {**SERVED, "scale_by_staleness": False}
WAYS: dict[str, Fields] = {
    "all_reduce": {},
    "moments": {"aggregate": "moments", "optimizer": ADAM},
    "local_sgd": {"strategy": {"name": "local_sgd", "local_steps": 1}},  # a round of one step is a step
    "DiLoCo": {"strategy": {"name": "local_sgd", "local_steps": 1, "outer": "diloco"}},
    "gossip": {"strategy": {"name": "gossip", "graph": "ring"}},
    "synchronous": {"strategy": {**SERVED, "staleness": 0}},
    "bounded": {"strategy": {**PUSHED, "staleness": 1}},
    "asynchronous": {"strategy": {**PUSHED, "staleness": None}},
    "bf16": {"compression": "bf16"},
    "fp16": {"compression": "fp16"},
    "int8": {"compression": "int8"},
    "topk": {"compression": {"name": "topk", "fraction": 0.05}},
    "powersgd": {"compression": {"name": "powersgd", "rank": 2}},
}
# choices that go together; asked what is arithmetic only
COMBINED: dict[str, Fields] = {
    "int8 both ways": {"compression": "int8", "compression_down": "int8"},
    "synchronous int8": {**WAYS["synchronous"], "compression": "int8", "compression_down": "int8"},
    "synchronous topk": {**WAYS["synchronous"], **WAYS["topk"]},
    "synchronous powersgd": {**WAYS["synchronous"], **WAYS["powersgd"]},
    "synchronous moments": {**WAYS["synchronous"], **WAYS["moments"]},
    "asynchronous moments": {**WAYS["asynchronous"], **WAYS["moments"]},
}
MOMENTS = ("moments", "synchronous moments", "asynchronous moments")
REPLICAS = ("local_sgd", "DiLoCo")
PUSHES = ("bounded", "asynchronous", "asynchronous moments")  # whole steps, one worker each

# Where a case says nothing about a way, or asks something that the way does not promise: why.
_EXCUSED: list[tuple[str, Sequence[str], str]] = [
    ("B04 bits", ["gossip"], "each worker has parameters of its own: how many there are changes the result"),
    ("B04 bits", PUSHES, "the result follows from the order of pushes, and that from the workers"),
    ("B14 parameter", ["gossip"], "who dies takes along what its neighbours have not heard: the mean moves"),
    ("D14 bits", ["gossip"], "each worker has parameters of its own"),
    ("D14 bits", PUSHES, "workers keep no parameters, but for the version that they compute from"),
    ("D14 large", MOMENTS, "the square of 3e38 has no place in single precision: Adam never moves for it"),
    ("D14 large", ["fp16"], "what is beyond 65504 is infinite as fp16, and the step is skipped: documented"),
    ("D16 many", PUSHES, "buffers are those of the push that came last: documented"),
]
APART = {(question, way): why for question, ways, why in _EXCUSED for way in ways}
ASKED: set[str] = set()  # what the tests ask of all ways


def all_ways(question: str, *, combined: bool = True) -> pytest.MarkDecorator:
    """The test is made with every way, but for those with a sentence above. combined: with COMBINED too."""
    ASKED.add(question)
    ways = [*WAYS, *(COMBINED if combined else ())]
    return pytest.mark.parametrize("way", [way for way in ways if (question, way) not in APART])


def fields_of(way: str) -> Fields:
    return WAYS.get(way) or COMBINED.get(way) or {}


def spec_of(way: str, rows: Sequence[Any], microbatches: int = 4, **fields: Any) -> Fields:
    """A linear probe, one sample a microbatch, samples in order, plain SGD with rate 1 but for moments."""
    batch = {"size": microbatches, "microbatch": 1}
    workers = {"min": 1, "max": min(4, microbatches)}
    return probe(list(rows), **{"batch": batch, "workers": workers, **fields_of(way), **fields})


def optimizer_of(way: str, lr: float, **sgd: Any) -> Fields:
    """SGD; for moments, which go with Adam only, what Adam has of it, at a tenth of the rate."""
    if way not in MOMENTS:
        return {"name": "sgd", "lr": lr, **sgd}
    return {"name": "adam", "lr": 0.1 * lr, "weight_decay": sgd.get("weight_decay", 0.0)}


def expected(
    way: str, steps: Steps, *, lr: float | Sequence[float] = 1.0, clip: float = math.inf, workers: int = 1
) -> list[float]:
    """The parameter after each step, from 0; the mean over the workers under gossip. lr: of each step, or of
    all; Adam's is 0.1 times as much."""
    rates = [lr] * len(steps) if isinstance(lr, int | float) else lr
    if way in MOMENTS:
        return adam(steps, [0.1 * rate for rate in rates], clip)
    went = [rate * _moved(way, step, clip, workers) for rate, step in zip(rates, steps, strict=True)]
    return outer(went) if way == "DiLoCo" else [-w for w in itertools.accumulate(went)]


def _moved(way: str, step: Sequence[float], clip: float, workers: int) -> float:
    """The mean gradient, clipped where this way clips."""
    mean = sum(step) / len(step)
    if way in REPLICAS:  # each its own
        return sum(g * _factor(abs(g), clip) for g in step) / len(step)
    norm = abs(mean)
    if way == "gossip":  # the root mean square of the workers' own
        share = len(step) // workers
        own = [sum(step[at : at + share]) / share for at in range(0, len(step), share)]
        norm = math.sqrt(sum(g * g for g in own) / len(own))
    return mean * _factor(norm, clip)


def _factor(norm: float, clip: float) -> float:
    return min(1.0, clip / (norm + 1e-6))


def outer(went: Sequence[float]) -> list[float]:
    """DiLoCo's outer Nesterov step, from how far the replicas went."""
    w = momentum = 0.0
    found = []
    for d in went:
        momentum = 0.9 * momentum + d
        w -= 0.7 * (d + 0.9 * momentum)
        found.append(w)
    return found


def adam(steps: Steps, rates: Sequence[float], clip: float = math.inf) -> list[float]:
    """Adam from the means of the microbatches' gradients and squares."""
    w = m = v = 0.0
    found = []
    for t, (gradients, lr) in enumerate(zip(steps, rates, strict=True), start=1):
        mean = sum(gradients) / len(gradients)
        c = _factor(abs(mean), clip)
        m = 0.9 * m + 0.1 * c * mean
        v = 0.999 * v + 0.001 * c * c * sum(g * g for g in gradients) / len(gradients)
        w -= lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
        found.append(w)
    return found

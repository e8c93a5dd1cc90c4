"""Norms by layer: what a commit record says of them, and which layer's gradient vanishes or explodes. Pure.

A layer is the module that a parameter belongs to: `encoder.0.weight` and `encoder.0.bias` make `encoder.0`.
Each owner squares and adds what it owns, parameter by parameter and block by block; these sums are combined
exactly, so that a norm does not depend on who owned what.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

# Root mean squares of a layer's gradient, beside that of the last layer, where backward begins: it shrinks or
# grows by about the same factor from layer to layer.
VANISHING = 1e-5
EXPLODING = 1e3
SURGE = 100.0  # times the median of the layer's own gradient norms
REMEMBERED = 32  # of these
LEAST = 8

VANISHES, EXPLODES = "gradient.vanishing", "gradient.exploding"
KINDS = ("grad", "weight", "update")  # in this order in entries and records


def layer_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def exact_parts(values: Iterable[float]) -> list[float]:
    """A few numbers with exactly the sum that `values` have: their own exactly rounded sum does not depend on
    how they were grouped (Shewchuk 1997, expansions). Not finite: what it is."""
    parts: list[float] = []
    for value in values:
        if not math.isfinite(value):
            return [value]
        rest = []
        for part in parts:
            total = value + part
            taken = total - value
            error = (value - (total - taken)) + (part - taken)
            if error:
                rest.append(error)
            value = total
        parts = [*rest, value] if value else rest
    return parts


def due(every_steps: int, step: int) -> bool:
    """step: that the next commit accepts, from 0. Measured are those that lead to a multiple."""
    return (step + 1) % every_steps == 0


def metrics(
    sums: Sequence[Sequence[float]], names: Sequence[str], mean: float, applied: bool
) -> dict[str, float]:
    """What people see. sums: of a record, by layer the squared (gradient, parameters, update); of a skipped
    step only the first. names: of the layers; none: there is only the whole. mean: makes a summed gradient a
    mean."""
    found: dict[str, float] = {}
    for name, (grad, weight, update) in zip(names, sums, strict=True) if names else ():
        found[f"grad_norm/{name}"] = math.sqrt(grad) * mean
        found |= _beside(f"/{name}", weight, update) if applied else {}
    whole = [math.fsum(layer[kind] for layer in sums) for kind in (1, 2)] if applied else []
    return found | (_beside("", *whole) if applied else {})


def _beside(of: str, weight: float, update: float) -> dict[str, float]:
    """Of squared norms; without parameters to compare with there is no ratio."""
    norms = {f"weight_norm{of}": math.sqrt(weight), f"update_norm{of}": math.sqrt(update)}
    return norms | ({f"update_ratio{of}": math.sqrt(update) / math.sqrt(weight)} if weight > 0 else {})


@dataclass(frozen=True)
class Layer:
    name: str
    size: int  # elements
    mask: int  # bit `index` of each of its parameters

    @classmethod
    def all(cls, parameters: Iterable[tuple[str, int]]) -> list[Layer]:
        """parameters: (name, elements), in the order in which they are registered."""
        found: dict[str, Layer] = {}
        for index, (parameter, size) in enumerate(parameters):
            name = layer_of(parameter)
            layer = found.get(name, cls(name, 0, 0))
            found[name] = cls(name, layer.size + size, layer.mask | 1 << index)
        return [layer for layer in found.values() if layer.size]


@dataclass(frozen=True)
class Odd:
    """A layer whose gradient has become odd."""

    type: str  # of the event
    message: str
    data: dict[str, Any]


@dataclass
class Watcher:
    """Says once that a layer's gradient vanishes or explodes, and says so again only after it had not."""

    layers: Sequence[Layer] = ()
    found: dict[str, str] = field(default_factory=dict)  # layer -> the event that was told
    past: dict[str, deque[float]] = field(default_factory=dict)  # layer -> norms, those of the last steps

    def look(self, step: int, norms: Sequence[float], used: int) -> list[Odd]:
        """norms: of the mean gradient, by layer; used: the bits of the parameters that the step has used."""
        told: list[Odd] = []
        all_rms = [n / math.sqrt(layer.size) for n, layer in zip(norms, self.layers, strict=True)]
        rows = zip(norms, all_rms, self.layers, strict=True)
        seen = [(norm, rms, layer.name) for norm, rms, layer in rows if used & layer.mask]
        for norm, rms, name in seen:
            last = seen[-1][1]
            type_, why = self._judge(name, norm, rms, last)
            if type_ is None:
                self.found.pop(name, None)
                self.past.setdefault(name, deque(maxlen=REMEMBERED)).append(norm)
            elif self.found.get(name) != type_:
                self.found[name] = type_
                does = "vanishes" if type_ == VANISHES else "explodes"
                data = {"layer": name, "step": step, "grad_norm": norm, "rms": rms, "rms_of_last_layer": last}
                told.append(Odd(type_, f"the gradient of layer {name} {does} at step {step}: {why}", data))
        return told

    def _judge(self, name: str, norm: float, rms: float, last: float) -> tuple[str | None, str]:
        past = self.past.get(name, ())
        usual = statistics.median(past) if len(past) >= LEAST else 0.0
        if not math.isfinite(norm):
            return EXPLODES, "it is not finite"
        if usual and norm > SURGE * usual:
            return EXPLODES, f"a norm of {norm:.3g}, the median of the last ones is {usual:.3g}"
        if rms > EXPLODING * last > 0:
            return EXPLODES, f"{rms / last:.3g} times as large as in the last layer, per element"
        if rms < VANISHING * last or rms == 0.0 < last:
            times = f"{last / rms:.3g} times smaller than in" if rms else "0, but not in"
            return VANISHES, f"{times} the last layer, per element"
        return None, ""

"""Which process computes which parts of a model (`split: pipeline`). Modules are looked at, never called.

    the model, as the Task's parts      p0 p1 p2 │ p3 p4 │ p5 p6 p7
    in runs, one for each process       stage 0    1       2

Cut is by trainable parameters, since it is memory that a model is split for. Whoever wants it cut elsewhere
gives as many parts as there are processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm

from elastrain.trainers.numerics.flat import UnusableModel
from elastrain.trainers.split.pieces import cut


def least_of(module: nn.Module) -> int:
    """Samples with which the model can be trained: no variance is taken over one."""
    return 2 if any(isinstance(m, BatchNorm) for m in module.modules()) else 1


@dataclass(frozen=True)
class Stages:
    """How a model is cut. Stage n is what process n of a worker computes."""

    runs: tuple[slice, ...]  # of parts
    users: dict[str, tuple[int, ...]]  # trainable parameter -> stages in which it is, one or more
    holders: dict[str, tuple[int, ...]]  # buffer -> stages in which it is, if any

    @classmethod
    def of(cls, module: nn.Module, parts: Sequence[nn.Module], count: int) -> Stages:
        """Raises UnusableModel if these parts are not the model, or are too few."""
        listed = parts if isinstance(parts, Sequence | nn.ModuleList) else [parts]
        if wrong := [type(each).__name__ for each in listed if not isinstance(each, nn.Module)]:
            raise UnusableModel(
                f"pipeline must return the model's parts, a list of modules, got a {wrong[0]}"
            )
        known = {id(t): name for name, t in (*module.named_parameters(), *module.named_buffers())}
        trained = {name for name, p in module.named_parameters() if p.requires_grad}
        inside = [_names(number, part, known) for number, part in enumerate(parts)]
        if missing := sorted(trained - set().union(*inside)):
            raise UnusableModel(
                f"{missing[0]} is in none of the {len(parts)} parts that pipeline returns: every trainable "
                "parameter has to be in one"
            )
        sizes = [sum(p.numel() for p in part.parameters() if p.requires_grad) for part in parts]
        if (several := sum(size > 0 for size in sizes)) < count:
            raise UnusableModel(
                f"workers.processes {count} with split: pipeline needs {count} parts with trainable "
                f"parameters, and the model has {several}: use fewer processes, or return more from pipeline"
            )
        runs = tuple(cut(sizes, count))
        stages = [set().union(*inside[run]) for run in runs]

        def where(name: str) -> tuple[int, ...]:
            return tuple(n for n, names in enumerate(stages) if name in names)

        return cls(runs, {n: where(n) for n in trained}, {n: where(n) for n, _ in module.named_buffers()})

    def owner(self, buffer: str) -> int:
        """The stage whose word it is."""
        return next(iter(self.holders[buffer]), 0)


def _names(number: int, part: nn.Module, known: dict[int, str]) -> set[str]:
    """What of the model is in a part. Raises UnusableModel if the part has something of its own."""
    for name, tensor in (*part.named_parameters(), *part.named_buffers()):
        if id(tensor) not in known:
            raise UnusableModel(
                f"part {number} of pipeline, {type(part).__name__}, has {name}, which the model does not "
                "have: make the parts of the model's own modules, parameters and buffers"
            )
    return {known[id(tensor)] for tensor in (*part.parameters(), *part.buffers())}

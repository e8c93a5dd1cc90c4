"""The Task: what a user writes to say what to train.

A job's spec names it as `module:Class`, and gives the keyword arguments. Everything else (which samples,
which worker, when to update) is the engine's.
"""

import difflib
import importlib
import inspect
import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate


@dataclass(frozen=True)
class Loss:
    """The loss of one microbatch: the sum over its samples, and how many they are.

    sum: scalar tensor with a gradient. weight: the number of samples, or of whatever the mean is taken over
    (tokens, pixels); it may be 0, never negative. The update follows the gradient of (sum of sums) / (sum
    of weights).
    """

    sum: Tensor
    weight: float

    def __post_init__(self) -> None:
        if not isinstance(self.sum, Tensor) or self.sum.numel() != 1:
            what = f"of shape {tuple(self.sum.shape)}" if isinstance(self.sum, Tensor) else repr(self.sum)
            raise TypeError(f"Loss.sum must be a scalar tensor, got {what}: add the losses of the samples up")
        object.__setattr__(self, "weight", _weight(self.weight, "Loss"))


@dataclass(frozen=True)
class Mean:
    """A metric of one microbatch: a sum and its weight. The metric is (sum of sums) / (sum of weights)."""

    sum: Tensor | float
    weight: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _weight(self.weight, "Mean"))


class Task:
    """What to train. Subclass it; `model`, `dataset` and `loss` are required.

    Methods must depend on their arguments and on the seeded random generators (python, numpy, torch) only:
    state that a Task keeps between microbatches voids the promise that the result does not depend on the
    workers.
    """

    def model(self) -> nn.Module:
        """A fresh model. Called with generators seeded from the job's seed."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to train: define model(self)")

    def dataset(self, split: str) -> "Dataset[Any] | None":
        """The samples of a split: "train", and "val" or None where there is nothing to evaluate on.

        A map-style dataset: `len(dataset)` and `dataset[i]`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no data: define dataset(self, split)")

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """The loss of one microbatch, summed over its samples."""
        raise NotImplementedError(f"{type(self).__name__} has no loss: define loss(self, model, batch)")

    def tensor_plan(self) -> "dict[str, Any]":
        """How the layers are cut where the spec has `workers.split: tensor`: names of modules, and a
        ParallelStyle of torch.distributed.tensor.parallel for each."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say how its layers are cut: define tensor_plan(self), or use "
            "workers.split: fully_shard, which needs no plan"
        )

    def pipeline(self, model: nn.Module) -> Sequence[nn.Module]:
        """The model as parts that are called one after the other, where the spec has `split: pipeline`.

        The first part is called with what `loss` calls the model with, each other one with what the part
        before it returned (a tuple: as several arguments), and what the last one returns is what `loss` gets.
        They are made of the model's own modules, parameters and buffers. By default the elements of an
        `nn.Sequential`.
        """
        if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
            return list(model)
        raise NotImplementedError(
            f"{type(self).__name__} does not say of which parts its model is made: define "
            "pipeline(self, model), or use workers.split: fully_shard, which needs no parts"
        )

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Mean]:
        """More figures to show when evaluating, by name. None by default."""
        return {}

    def collate(self, samples: list[Any]) -> Any:
        """One microbatch from its samples, in order. By default torch's `default_collate`."""
        return default_collate(samples)


class TaskNotFound(Exception):
    """The spec's `task` or `task_args` lead to no Task. The message says which part, and the remedy."""


def loss_of(task: Task, model: nn.Module, batch: Any) -> Loss:
    """The task's loss of one microbatch. Raises TypeError if it answers with anything else."""
    loss: object = task.loss(model, batch)
    if not isinstance(loss, Loss):
        raise TypeError(
            f"{type(task).__name__}.loss must return Loss(sum=..., weight=...), got {type(loss).__name__}"
        )
    return loss


def metrics_of(task: Task, model: nn.Module, batch: Any) -> dict[str, Mean]:
    """The task's metrics of one microbatch. Raises TypeError if one of them is no Mean."""
    means: object = task.metrics(model, batch)
    if not isinstance(means, dict):
        raise TypeError(f"{type(task).__name__}.metrics must return a dict, got {type(means).__name__}")
    for name, mean in means.items():
        if not isinstance(mean, Mean):
            raise TypeError(
                f"{type(task).__name__}.metrics must map names to Mean(sum=..., weight=...), "
                f"got {type(mean).__name__} for {name!r}"
            )
    return means


def load_task(path: str, args: Mapping[str, Any]) -> Task:
    """Imports `module:Class` and makes the Task.

    Raises TaskNotFound where the module or class is missing, is not a Task, or does not take these
    arguments. What user code itself raises, while imported or in its `__init__`, goes through as it is,
    with its own traceback.
    """
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name:
        raise TaskNotFound(f"task {path!r} is not of the form module:Class")
    found = getattr(_import(module_name), class_name, None)
    if found is None:
        tasks = _task_names(importlib.import_module(module_name))
        raise TaskNotFound(f"module {module_name} has no class {class_name!r}{_hint(class_name, tasks)}")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise TaskNotFound(f"{path} is not a Task: derive it from elastrain.trainers.task.Task")
    _check_args(path, found, args)
    return found(**args)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(missing + "."):
            raise  # the module is there; something that it imports is not
        raise TaskNotFound(
            f"no module named {missing!r} for task {name!r}{_hint(missing, _siblings(missing))}; "
            "user code is imported from the folder given as --working-dir"
        ) from None


def _siblings(missing: str) -> list[str]:
    """The modules beside a missing one, where its parent package exists."""
    parent, _, _ = missing.rpartition(".")
    if not parent:
        return []
    places = getattr(importlib.import_module(parent), "__path__", [])
    return [f"{parent}.{module.name}" for module in pkgutil.iter_modules(places)]


def _task_names(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Task) and value is not Task
    ]


def _check_args(path: str, cls: type[Task], args: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(cls)
    except ValueError:
        return  # no signature to be had (a class made in C): calling it will tell
    try:
        signature.bind(**args)
    except TypeError as error:
        names = [name for name in signature.parameters if name not in args]
        unknown = [name for name in args if name not in signature.parameters]
        hint = "".join(_hint(name, names) for name in unknown)
        takes = ", ".join(signature.parameters) or "none"
        raise TaskNotFound(f"task_args do not fit {path}: {error}{hint} (it takes: {takes})") from None


def _hint(wrong: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(wrong, known, n=1)
    if close:
        return f", did you mean {close[0]!r}?"
    return f" (it has: {', '.join(sorted(known))})" if known else ""


def _weight(value: object, owner: str) -> float:
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{owner}.weight must be a number, got {value!r}")
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{owner}.weight must be finite and not negative, got {number}")
    return float(number)

"""What a spec may not say though each field is sound: contradictions, and what comes later."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

from elastrain.trainers.spec.errors import FieldError, show
from elastrain.trainers.spec.tasks import task_faults
from elastrain.trainers.spec.workers import split_faults

if TYPE_CHECKING:
    from elastrain.trainers.spec import JobSpec


NAMED = 12  # remedies in one sentence


@dataclass(frozen=True)
class Fault:
    """A fault between fields. fields: the top-level fields that it comes from."""

    pointer: str
    detail: str
    fields: frozenset[str]

    @property
    def error(self) -> FieldError:
        return {"pointer": self.pointer, "detail": self.detail}


def contradictions(spec: "JobSpec") -> list[Fault]:
    """Fields that do not fit each other."""
    checks = (_task, _length, _batch, _workers, _schedule, _optimizer, _aggregate, _compression, _down)
    more = (_local_sgd, _served, _gossip, _split)
    return [fault for check in (*checks, *more) for fault in check(spec)]


def unsupported(spec: "JobSpec") -> list[Fault]:
    """What a later version brings: refused rather than ignored."""
    faults = []
    for place, allowed, remedy in NOT_YET:
        value: Any = spec
        for part in place.split("."):
            value = getattr(value, part)
        if not allowed(value):
            shown = show(value.model_dump(mode="json") if hasattr(value, "model_dump") else value)
            detail = f"{place} {shown} is not supported yet: {remedy}"
            faults.append(Fault("/" + place.replace(".", "/"), detail, frozenset({place.split(".")[0]})))
    return faults


def _compression(spec: "JobSpec") -> list[Fault]:
    scheme, aggregate = spec.compression.name, spec.aggregate
    summed = _is_summed(spec)
    if scheme == "none" or (summed and aggregate == "gradients"):
        return []
    wrong = f"aggregate {aggregate}" if summed else _strategy(spec)
    detail = (
        f"{scheme} does not go with {wrong}: use none, or aggregate gradients with strategy all_reduce or a "
        "synchronous parameter_server"
    )
    return [_fault("/compression/name", detail, "compression", "strategy", "aggregate")]


def _down(spec: "JobSpec") -> list[Fault]:
    if spec.compression_down == "none" or _is_summed(spec):
        return []
    detail = (
        f"{spec.compression_down} does not go with {_strategy(spec)}: use none, or strategy all_reduce or a "
        "synchronous parameter_server"
    )
    return [_fault("/compression_down", detail, "compression_down", "strategy")]


def _is_summed(spec: "JobSpec") -> bool:
    """Are gradients summed over all workers in each step?"""
    strategy = spec.strategy
    return strategy.name == "all_reduce" or (strategy.name == "parameter_server" and strategy.staleness == 0)


def _strategy(spec: "JobSpec") -> str:
    """For a message."""
    strategy = spec.strategy
    if strategy.name != "parameter_server":
        return f"strategy {strategy.name}"
    return f"strategy {strategy.name} with staleness {show(strategy.staleness)}"


def in_wire_nodes(spec: "JobSpec") -> bool:
    """Is the sum of a step cut into parts whose number decides the result?"""
    return spec.compression.name != "none"


def worker_range(error: FieldError, spec: "JobSpec") -> FieldError:
    """The error, with the allowed range where it is about the number of workers."""
    if error["pointer"] not in ("/workers", "/workers/min", "/workers/max"):
        return error
    return {**error, "detail": f"{error['detail']} (allowed: {_allowed(spec)})"}


def _allowed(spec: "JobSpec") -> str:
    per_group = spec.workers.per_group
    most = min(spec.microbatches, spec.wire_nodes or spec.microbatches)
    step = f" in steps of {per_group}" if per_group > 1 else ""
    why = f"batch.size / batch.microbatch is {spec.microbatches}"
    if most < spec.microbatches:
        why = f"the job's sums are cut into {most} parts (wire_nodes) since it was submitted"
    return f"{per_group} to {most // per_group * per_group} workers{step}, as {why}"


def _is(wanted: object) -> Callable[[Any], bool]:
    return lambda value: bool(value == wanted)


NOT_YET: list[tuple[str, Callable[[Any], bool], str]] = [
    # field, what is supported, remedy
    ("resources.gpu", _is(0), "use 0; training runs on CPU"),
    ("resources.accelerator", _is(None), "leave it out"),
    ("checkpoint.best", _is(None), "leave it out; the newest ones are kept"),
    ("requirements", _is([]), "install them where the workers run, and leave it out"),
    ("image", _is(None), "leave it out; workers run in the cluster's own image"),
    ("secrets", _is([]), "leave it out"),
]


def _task(spec: "JobSpec") -> list[Fault]:
    fields = frozenset({"task", "task_args"})
    return [Fault(**error, fields=fields) for error in task_faults(spec.task, spec.task_args)]


def _length(spec: "JobSpec") -> list[Fault]:
    if (spec.epochs is None) != (spec.steps is None):
        return []
    got = "neither" if spec.epochs is None else f"epochs {spec.epochs} and steps {spec.steps}"
    return [_fault("/epochs", f"give exactly one of epochs and steps, got {got}", "epochs", "steps")]


def _batch(spec: "JobSpec") -> list[Fault]:
    size, microbatch = spec.batch.size, spec.batch.microbatch
    if size % microbatch == 0:
        return []
    best = _divisors(size, near=microbatch)[0]
    detail = f"{microbatch} does not divide batch.size {size}: use {best}, for example"
    return [_fault("/batch/microbatch", detail, "batch")]


def _workers(spec: "JobSpec") -> list[Fault]:
    workers, faults = spec.workers, []
    if workers.min > workers.max:
        detail = (
            f"workers.min {workers.min} is more than workers.max {workers.max} (allowed: {_allowed(spec)})"
        )
        faults.append(_fault("/workers/min", detail, "workers"))
    for bound in ("min", "max", "spares"):
        number = getattr(workers, bound)
        if number % workers.per_group:
            detail = f"{number} is not a multiple of workers.per_group (allowed: {_allowed(spec)})"
            faults.append(_fault(f"/workers/{bound}", detail, "workers"))
    if spec.batch.size % spec.batch.microbatch == 0 and workers.max > spec.microbatches:
        detail = (
            f"{workers.max} workers are more than the {spec.microbatches} microbatches of a step "
            f"(allowed: {_allowed(spec)}); a smaller batch.microbatch allows more"
        )
        faults.append(_fault("/workers/max", detail, "workers", "batch"))
    return faults or _wire_nodes(spec)


def _wire_nodes(spec: "JobSpec") -> list[Fault]:
    """The job's sums are cut into as many parts as its worker limit was at the submit."""
    nodes, most = spec.wire_nodes, spec.workers.max
    if nodes is None or spec.batch.size % spec.batch.microbatch:
        return []
    if nodes > spec.microbatches:
        detail = f"{nodes} is more than the {spec.microbatches} microbatches of a step: use at most that"
        return [_fault("/wire_nodes", detail, "wire_nodes", "batch")]
    if most > nodes:
        detail = (
            f"{most} workers are more than the {nodes} parts of a step's sum, one for each "
            f"(allowed: {_allowed(spec)}); for more submit another job, with wire_nodes: null"
        )
        return [_fault("/workers/max", detail, "workers", "wire_nodes")]
    return []


def _schedule(spec: "JobSpec") -> list[Fault]:
    schedule, faults = spec.schedule, []
    if schedule.min_lr > spec.optimizer.lr:
        detail = f"min_lr {schedule.min_lr} is more than optimizer.lr {spec.optimizer.lr}: use at most that"
        faults.append(_fault("/schedule/min_lr", detail, "schedule", "optimizer"))
    if spec.steps is not None and schedule.warmup_steps > spec.steps:
        detail = f"warmup_steps {schedule.warmup_steps} is more than steps {spec.steps}: use at most that"
        faults.append(_fault("/schedule/warmup_steps", detail, "schedule", "steps"))
    return faults


def _optimizer(spec: "JobSpec") -> list[Fault]:
    sgd = spec.optimizer
    if sgd.name != "sgd" or not sgd.nesterov or (sgd.momentum and not sgd.dampening):
        return []
    detail = f"needs momentum above 0 and dampening 0, got {sgd.momentum} and {sgd.dampening}"
    return [_fault("/optimizer/nesterov", detail, "optimizer")]


def _aggregate(spec: "JobSpec") -> list[Fault]:
    if spec.aggregate == "gradients":
        return []
    faults = []
    if spec.optimizer.name not in ("adam", "adamw"):
        detail = f"moments goes with the optimizers adam and adamw, got {spec.optimizer.name}: use gradients"
        faults.append(_fault("/aggregate", detail, "aggregate", "optimizer"))
    if spec.strategy.name not in ("all_reduce", "parameter_server"):
        detail = f"moments goes with all_reduce and parameter_server, got {spec.strategy.name}: use gradients"
        faults.append(_fault("/aggregate", detail, "aggregate", "strategy"))
    if spec.clip_value is not None:
        detail = f"moments cannot be clipped by value, got {spec.clip_value}: use clip_norm, or gradients"
        faults.append(_fault("/clip_value", detail, "aggregate", "clip_value"))
    return faults


def _local_sgd(spec: "JobSpec") -> list[Fault]:
    strategy, faults = spec.strategy, []
    if strategy.name != "local_sgd" or spec.batch.size % spec.batch.microbatch:
        return []
    replicas = strategy.replicas or spec.microbatches
    if spec.microbatches % replicas:
        fit = ", ".join(map(str, sorted(_divisors(spec.microbatches, near=replicas)[:NAMED])))
        detail = (
            f"{replicas} replicas cannot share the {spec.microbatches} microbatches of an inner step equally "
            f"(batch.size / batch.microbatch): use one of {fit}"
        )
        faults.append(_fault("/strategy/replicas", detail, "strategy", "batch"))
    elif spec.workers.max > replicas:
        detail = (
            f"{spec.workers.max} workers are more than the {replicas} replicas of local_sgd, and one is "
            f"computed by one worker: use workers.max up to {replicas}, or more replicas"
        )
        faults.append(_fault("/workers/max", detail, "workers", "strategy", "batch"))
    if spec.wire_nodes is not None:
        detail = f"local_sgd sums over its replicas, got {spec.wire_nodes}: leave it out, and use replicas"
        faults.append(_fault("/wire_nodes", detail, "wire_nodes", "strategy"))
    if strategy.outer.nesterov and not strategy.outer.momentum:
        detail = "needs outer.momentum above 0, got 0: DiLoCo has 0.9"
        faults.append(_fault("/strategy/outer/nesterov", detail, "strategy"))
    return faults


def _served(spec: "JobSpec") -> list[Fault]:
    strategy, faults = spec.strategy, []
    if strategy.name != "parameter_server":
        return []
    for field in ("compensation", "replay"):
        if strategy.staleness == 0 and (value := getattr(strategy, field)):
            detail = f"is of asynchronous runs, got {value} with staleness 0: leave it out, or set staleness"
            faults.append(_fault(f"/strategy/{field}", detail, "strategy"))
    if strategy.compensation and spec.aggregate != "gradients":
        detail = (
            f"compensates gradients and not their squares, got {strategy.compensation} with aggregate "
            f"{spec.aggregate}: leave it out, or use gradients"
        )
        faults.append(_fault("/strategy/compensation", detail, "strategy", "aggregate"))
    return faults


def _gossip(spec: "JobSpec") -> list[Fault]:
    """What needs the sum over all workers."""
    if spec.strategy.name != "gossip" or spec.watch.norms == "none":
        return []
    detail = f"{spec.watch.norms} needs the whole gradient, which nobody has under gossip: use none"
    return [_fault("/watch/norms", detail, "watch", "strategy")]


def _divisors(number: int, near: int) -> list[int]:
    """The nearest first. A number may have ten digits: nobody counts up to it while a request waits."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)}, key=lambda n: (abs(n - near), n))


def _split(spec: "JobSpec") -> list[Fault]:
    return [_fault("/workers/processes", detail, *fields) for detail, fields in split_faults(spec)]


def _fault(pointer: str, detail: str, *fields: str) -> Fault:
    return Fault(pointer, detail, frozenset(fields))

"""`resume_from`, `strategy.replay`: which checkpoint of which job is meant, settled at the submit."""

from __future__ import annotations

from typing import NamedTuple

from elastrain.service.auth import Actor
from elastrain.service.errors import Conflict, Invalid, NotFound
from elastrain.service.finding import find
from elastrain.service.store import Tx, training
from elastrain.service.store.rows import JobRow
from elastrain.trainers.spec import OUT_OF_ORDER, JobSpec, Source, asynchronous, model_only, moved, place


class Begun(NamedTuple):
    """spec: with both as whole id and step, so that every attempt begins from, or repeats, the same one."""

    spec: JobSpec
    warnings: list[str]


def begun_from(tx: Tx, spec: JobSpec, actor: Actor) -> Begun:
    """Raises Invalid if there is no such job for this actor, no such checkpoint, or it cannot fit."""
    if (replay := getattr(spec.strategy, "replay", None)) is not None:
        row, step = _checkpoint(tx, replay, actor, "/strategy/replay")
        _must_repeat(spec, row, step)
        strategy = spec.strategy.model_copy(update={"replay": str(Source(row.id, step))})
        spec = spec.model_copy(update={"strategy": strategy})
    if spec.resume_from is None:
        return Begun(spec, [])
    row, step = _checkpoint(tx, spec.resume_from, actor, "/resume_from")
    settled = spec.model_copy(update={"resume_from": str(Source(row.id, step))})
    theirs = JobSpec.model_validate(row.spec)
    if why := moved(place(theirs, None), place(spec, None)):
        return Begun(settled, [model_only(str(settled.resume_from), why)])
    _must_fit(spec, theirs, step)
    return Begun(settled, [])


def _checkpoint(tx: Tx, named: str, actor: Actor, pointer: str) -> tuple[JobRow, int]:
    """The job, and the step of its checkpoint. pointer: the field that names them."""
    try:
        wanted = Source.parse(named)
        row = find(tx, wanted.job, actor)
    except ValueError as error:
        raise _invalid(str(error), pointer) from None
    except (NotFound, Conflict) as error:
        raise _invalid(error.detail, pointer) from None
    saved = [item["step"] for item in training.list_checkpoints(tx, row.id) if item["state"] == "saved"]
    if not saved:
        raise _invalid(f"job {row.id} has no checkpoint", pointer)
    if wanted.step is not None and wanted.step not in saved:
        has = ", ".join(map(str, saved))
        raise _invalid(f"job {row.id} has no checkpoint of step {wanted.step}; it has {has}", pointer)
    return row, int(saved[-1] if wanted.step is None else wanted.step)


def _must_fit(spec: JobSpec, theirs: JobSpec, step: int) -> None:
    """Of what goes on as it is, what can be known before anything is loaded; the workers check the rest
    before the first step."""
    if spec.steps is not None and step >= spec.steps:
        raise _invalid(f"that checkpoint is of step {step}, and steps is {spec.steps}: nothing would be left")
    name = theirs.optimizer.name
    if name != spec.optimizer.name:
        raise _invalid(
            f"that checkpoint has the state of {name}, and optimizer.name is {spec.optimizer.name}: use "
            f"{name}, or another seed, with which only the model is taken"
        )
    if lacking := sorted(set(spec.optimizer.slots) - set(theirs.optimizer.slots)):
        raise _invalid(f"that checkpoint has no {', '.join(lacking)}, which {name} keeps as it is set here")
    if asynchronous(theirs.strategy) and not asynchronous(spec.strategy):
        raise _invalid(OUT_OF_ORDER)
    outer, before = getattr(spec.strategy, "outer", None), getattr(theirs.strategy, "outer", None)
    if outer is not None and outer.momentum and not (before is not None and before.momentum):
        raise _invalid(f"that checkpoint has no outer momentum, and strategy.outer has {outer.momentum}")


def _must_repeat(spec: JobSpec, row: JobRow, step: int) -> None:
    """As far as it can be known here: the servers look at the order itself before the first step."""
    pointer = "/strategy/replay"
    if not asynchronous(JobSpec.model_validate(row.spec).strategy):
        raise _invalid(f"job {row.id} was no asynchronous run: there is no order to repeat", pointer)
    if spec.steps is not None and spec.steps < step:
        detail = f"that checkpoint has the order of {step} steps, and steps is {spec.steps}"
        raise _invalid(f"{detail}: use {step} or more", pointer)


def _invalid(detail: str, pointer: str = "/resume_from") -> Invalid:
    return Invalid(f"{pointer}: {detail}", errors=[{"pointer": pointer, "detail": detail}])

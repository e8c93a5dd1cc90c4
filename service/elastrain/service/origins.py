"""`resume_from`: which checkpoint of which job is meant, settled when the job is submitted."""

from __future__ import annotations

from elastrain.service.auth import Actor
from elastrain.service.errors import Conflict, Invalid, NotFound
from elastrain.service.finding import find
from elastrain.service.store import Tx, training
from elastrain.service.store.rows import JobRow
from elastrain.trainers.spec import JobSpec, Source


def begun_from(tx: Tx, spec: JobSpec, actor: Actor) -> JobSpec:
    """The spec with `resume_from` as whole id and step, so that every attempt begins from the same one.

    Raises Invalid if there is no such job for this actor, no such checkpoint, or it cannot fit.
    """
    if spec.resume_from is None:
        return spec
    try:
        wanted = Source.parse(spec.resume_from)
        row = find(tx, wanted.job, actor)
    except ValueError as error:
        raise _invalid(str(error)) from None
    except (NotFound, Conflict) as error:
        raise _invalid(error.detail) from None
    step = _step(tx, row, wanted.step)
    _must_fit(spec, row, step)
    return spec.model_copy(update={"resume_from": str(Source(row.id, step))})


def _step(tx: Tx, row: JobRow, wanted: int | None) -> int:
    saved = [item["step"] for item in training.list_checkpoints(tx, row.id) if item["state"] == "saved"]
    if not saved:
        raise _invalid(f"job {row.id} has no checkpoint")
    if wanted is None:
        return int(saved[-1])
    if wanted not in saved:
        raise _invalid(
            f"job {row.id} has no checkpoint of step {wanted}; it has {', '.join(map(str, saved))}"
        )
    return wanted


def _must_fit(spec: JobSpec, row: JobRow, step: int) -> None:
    """What can be known before anything is loaded; the workers check the rest before the first step."""
    if spec.steps is not None and step >= spec.steps:
        raise _invalid(f"that checkpoint is of step {step}, and steps is {spec.steps}: nothing would be left")
    theirs = row.spec["optimizer"]["name"]
    if theirs != spec.optimizer.name:
        raise _invalid(
            f"that checkpoint has the state of {theirs}, and optimizer.name is {spec.optimizer.name}"
        )


def _invalid(detail: str) -> Invalid:
    return Invalid(f"/resume_from: {detail}", errors=[{"pointer": "/resume_from", "detail": detail}])
